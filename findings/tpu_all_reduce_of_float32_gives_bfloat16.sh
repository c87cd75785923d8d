#!/usr/bin/env bash
# A matrix product that several TPUs divide by its inner dimension ends in an all-reduce. With bfloat16 operands and
# `preferred_element_type=float32`, rounded to bfloat16 right afterwards, the compiler moves the rounding into the
# all-reduce and leaves its operand in float32: `bf16[..] all-reduce(f32[..])`. Each device sends twice the bytes of the
# product that is bfloat16 itself, and a reader of the program who counts bytes by the type of the result, as one may for
# an operation that adds values of one type, sees no difference. For one device the two programs are the same.
# It needs no accelerator: the TPU's compiler runs alone. Seen with jax 0.10.2 and libtpu 0.0.42.1, for v5e:2x2:
#   rounded afterwards: float32 sent for a result of bfloat16
#   bfloat16 throughout: bfloat16 sent for a result of bfloat16
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
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LONG = {"bf16": "bfloat16", "f32": "float32"}
chips = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
mesh = Mesh(np.array(chips.devices), ("features",))


def of(shape, *axes):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(*axes)))


def rounded_afterwards(x, weight):
    return jax.lax.dot(x, weight, preferred_element_type=jnp.float32).astype(jnp.bfloat16)


def bfloat16_throughout(x, weight):
    return jax.lax.dot(x, weight)


found = {}
for product in (rounded_afterwards, bfloat16_throughout):
    whole = NamedSharding(mesh, PartitionSpec())
    compiled = jax.jit(product, out_shardings=whole).lower(
        of((1024, 4096), None, "features"), of((4096, 1024), "features", None)
    ).compile()
    text = compiled.as_text()
    result, operand = re.search(r"= (\w+)\[\d[^=]* all-reduce(?:-start)?\(%([\w.-]+)\)", text).groups()
    sent = re.search(rf"%{re.escape(operand)} = (\w+)\[", text)[1]
    found[product.__name__] = LONG[sent], LONG[result]
    name = product.__name__.replace("_", " ")
    print(f"{name}: {LONG[sent]} sent for a result of {LONG[result]}")
assert found == {
    "rounded_afterwards": ("float32", "bfloat16"),
    "bfloat16_throughout": ("bfloat16", "bfloat16"),
}, found
PYTHON
