#!/usr/bin/env bash
# PyTorch and JAX both have float4_e2m1fn and both speak DLPack, and neither takes the other's tensor of it.
#
# A byte holds two such numbers. PyTorch exports a byte as one element of two lanes, and refuses one lane; XLA exports a
# number as one element of one lane, and refuses two. DLPack's specification has the type code and leaves the packing
# open. float8 passes between the two in both directions; float4 weights have to travel as uint8, with the shape beside.
#
# Output seen:
#   torch 2.13.0+cpu, jax 0.10.2
#   PyTorch to JAX: float8_e4m3fn passes
#   PyTorch to JAX: float4 raises JaxRuntimeError: UNIMPLEMENTED: DLPack types with lanes != 1 not implemented, got 2
#   JAX to PyTorch: float4 raises BufferError: Unsupported kDLFloat4_e2m1fn lanes 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import torch

print(f"torch {torch.__version__}, jax {jax.__version__}")
packed = torch.tensor([0x21, 0x43], dtype=torch.uint8)


def outcome(take, tensor) -> str:
    try:
        take(tensor)
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error).splitlines()[0]}"
    return "passes"


eight = outcome(jnp.from_dlpack, packed.view(torch.float8_e4m3fn))
to_jax = outcome(jnp.from_dlpack, packed.view(torch.float4_e2m1fn_x2))
to_torch = outcome(torch.from_dlpack, jnp.zeros(4, jnp.float4_e2m1fn))
print(f"PyTorch to JAX: float8_e4m3fn {eight}")
print(f"PyTorch to JAX: float4 {to_jax}")
print(f"JAX to PyTorch: float4 {to_torch}")
assert eight == "passes" and "lanes != 1" in to_jax and "lanes 1" in to_torch, "the behaviour has changed"
PYTHON
