#!/usr/bin/env bash
# JAX takes complex128 for a TPU (with jax_enable_x64), and no document of its refuses it there. The TPU's compiler
# compiles some operations of it, such as sums and matrix products, and fails inside itself for others that only move
# elements: the error names a layout of the compiler's and no dtype. Others, which are not shown here, end the process.
# So whether a model of complex128 compiles is known only when all of it has been tried.
# It needs no accelerator: the TPU's compiler runs alone. Seen with jax 0.10.2 and libtpu 0.0.42.1, for v5e:
#   add: compiles
#   matmul: compiles
#   concatenate: JaxRuntimeError: INTERNAL: RET_CHECK failure
#   fft: JaxRuntimeError: INVALID_ARGUMENT: during context [pre-optimization]: Unexpected operand type for FFT
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "jax[cpu]==0.10.2" "libtpu==0.0.42.1"
export TPU_SKIP_MDS_QUERY=1 TPU_ACCELERATOR_TYPE=v5litepod-4 TPU_WORKER_HOSTNAMES=localhost JAX_PLATFORMS=cpu
"$folder/venv/bin/python" - 2>"$folder/errors" <<'PYTHON' || { cat "$folder/errors" >&2; exit 1; }
import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

jax.config.update("jax_enable_x64", True)
chip = topologies.get_topology_desc(platform="tpu", topology_name="v5e:1x1", chips_per_host_bounds=(1, 1, 1))
x = jax.ShapeDtypeStruct((8, 8), jnp.complex128, sharding=SingleDeviceSharding(chip.devices[0]))


def outcome(function):
    try:
        jax.jit(function).lower(x).compile()
    except jax.errors.JaxRuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
    return "compiles"


found = {
    "add": outcome(lambda x: x + x),
    "matmul": outcome(lambda x: x @ x),
    "concatenate": outcome(lambda x: jnp.concatenate([x, x])),
    "fft": outcome(jnp.fft.fft),
}
for name, said in found.items():
    print(f"{name}: {said}")
assert found["add"] == found["matmul"] == "compiles", found
assert "INTERNAL: RET_CHECK failure" in found["concatenate"], found
assert "Unexpected operand type for FFT" in found["fft"], found
PYTHON
