#!/usr/bin/env bash
# PyTorch 2.13 converts infinity to float8_e4m3fn as 448; ml_dtypes and JAX give NaN.
#
# float8_e4m3fn has NaN and no infinity. The OCP specification knows two conversions of what is too large: to the
# largest number (saturating) or to NaN. PyTorch 2.13 takes the first, also for infinity itself, so an overflow leaves no
# trace in a tensor of this dtype; for its two other float8 dtypes without infinity it takes the second. ml_dtypes, and
# JAX with it, take the second for all. A check for NaN and infinity after a cast finds an overflow in one library
# and not in the other.
#
# Output seen:
#   torch 2.13.0+cpu, ml_dtypes 0.6.0, jax 0.10.2
#   inf to    float8_e4m3fn    PyTorch 448.0  ml_dtypes nan  JAX nan
#   1e9 to    float8_e4m3fn    PyTorch 448.0  ml_dtypes nan  JAX nan
#   inf to    float8_e4m3fnuz  PyTorch nan    ml_dtypes nan  JAX nan
#   inf to    float8_e5m2fnuz  PyTorch nan    ml_dtypes nan  JAX nan
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

print(f"torch {torch.__version__}, ml_dtypes {ml_dtypes.__version__}, jax {jax.__version__}")
seen = []
for number, dtype in (
    (float("inf"), "float8_e4m3fn"),
    (1e9, "float8_e4m3fn"),
    (float("inf"), "float8_e4m3fnuz"),
    (float("inf"), "float8_e5m2fnuz"),
):
    values = (
        float(torch.tensor(number).to(getattr(torch, dtype)).float()),
        float(np.float32(number).astype(getattr(ml_dtypes, dtype))),
        float(jnp.float32(number).astype(getattr(jnp, dtype)).astype(jnp.float32)),
    )
    name = "inf" if number == float("inf") else "1e9"
    print(f"{name} to    {dtype:16} PyTorch {values[0]!s:6} ml_dtypes {values[1]!s:4} JAX {values[2]}")
    seen.append([str(value) for value in values])
expected = [["448.0", "nan", "nan"], ["448.0", "nan", "nan"], ["nan", "nan", "nan"], ["nan", "nan", "nan"]]
assert seen == expected, "the behaviour has changed"
PYTHON
