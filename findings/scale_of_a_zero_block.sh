#!/usr/bin/env bash
# Zero becomes the smallest float8_e8m0fnu number in PyTorch, and NaN in ml_dtypes and JAX.
#
# float8_e8m0fnu holds the scale of a block in the OCP microscaling formats: a power of two without sign, and no zero. The
# scale of a block is taken from its largest magnitude, so a block of zeros asks for the conversion of 0. PyTorch rounds
# it up to 2**-127; ml_dtypes, and JAX with it, give NaN, so that the block is NaN after it is scaled back. A
# negative number loses its sign in PyTorch and becomes NaN in the others. Weights quantised by the same formula in
# both libraries therefore differ where a block is zero, as in padding.
#
# Output seen:
#   torch 2.13.0+cpu, ml_dtypes 0.6.0, jax 0.10.2
#   of     PyTorch    ml_dtypes  JAX
#   0.0    2**-127    nan        nan
#   -4.0   2**2       nan        nan
#   4.0    2**2       2**2       2**2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

print(f"torch {torch.__version__}, ml_dtypes {ml_dtypes.__version__}, jax {jax.__version__}")


def said(value: float) -> str:
    return "nan" if math.isnan(value) else f"2**{math.log2(value):.0f}"


print(f"{'of':6} {'PyTorch':10} {'ml_dtypes':10} JAX")
seen = []
for number in (0.0, -4.0, 4.0):
    values = (
        float(torch.tensor(number).to(torch.float8_e8m0fnu).double()),
        float(np.float32(number).astype(ml_dtypes.float8_e8m0fnu)),
        float(jnp.float32(number).astype(jnp.float8_e8m0fnu).astype(jnp.float32)),
    )
    seen.append([said(value) for value in values])
    print(f"{number!s:6} {seen[-1][0]:10} {seen[-1][1]:10} {seen[-1][2]}")
expected = [["2**-127", "nan", "nan"], ["2**2", "nan", "nan"], ["2**2", "2**2", "2**2"]]
assert seen == expected, "the behaviour has changed"
PYTHON
