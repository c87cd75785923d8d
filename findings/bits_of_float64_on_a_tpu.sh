#!/usr/bin/env bash
# The sign bit of float64 does not compile for a TPU: the compiler keeps a float64 and an int64 as two halves each, and
# gives the halves of an int64 that was a float64 two dtypes, s32 and u32. The next operation on them is refused: a shift,
# a sum, a comparison. So `jnp.signbit`, `copysign`, `nextafter`, `frexp` and `ldexp` of float64 fail. The same bits taken
# as uint64, and converted to int64 afterwards, compile.
# It needs no accelerator: the TPU's compiler runs alone. Seen with jax 0.10.2 and libtpu 0.0.42.1, for v5e:
#   signbit: Binary op shift-right-arithmetic with different element types: s32[20] and u32[20]
#   nextafter: Binary op and with different element types: s32[20] and u32[20]
#   by way of uint64: compiles
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "jax[cpu]==0.10.2" "libtpu==0.0.42.1"
export TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v5litepod-4 TPU_WORKER_HOSTNAMES=localhost JAX_PLATFORMS=cpu
"$folder/venv/bin/python" - 2>"$folder/errors" <<'PYTHON' || { cat "$folder/errors" >&2; exit 1; }
import re

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

jax.config.update("jax_enable_x64", True)
chip = topologies.get_topology_desc(platform="tpu", topology_name="v5e:1x1", chips_per_host_bounds=(1, 1, 1))
x = jax.ShapeDtypeStruct((20,), jnp.float64, sharding=SingleDeviceSharding(chip.devices[0]))


def by_way_of_uint64(x):
    return jax.lax.bitcast_convert_type(x, jnp.uint64).astype(jnp.int64) >> 63 != 0


def outcome(function, *given):
    try:
        jax.jit(function).lower(*given).compile()
    except jax.errors.JaxRuntimeError as error:
        return re.search(r"Binary op .*?\] and \w+\[\d+\]", str(error))[0]
    return "compiles"


found = {
    "signbit": outcome(jnp.signbit, x),
    "nextafter": outcome(jnp.nextafter, x, x),
    "by way of uint64": outcome(by_way_of_uint64, x),
}
for name, said in found.items():
    print(f"{name}: {said}")
assert "different element types: s32[20] and u32[20]" in found["signbit"], found
assert "different element types: s32[20] and u32[20]" in found["nextafter"], found
assert found["by way of uint64"] == "compiles", found
PYTHON
