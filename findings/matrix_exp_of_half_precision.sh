#!/usr/bin/env bash
# torch.matrix_exp takes float16 and bfloat16 on the CPU, and for a matrix of more than one row its result is no
# exponential: for the identity, whose exponential is 2.718 times the identity, it is negative and of any size, and for
# smaller matrices NaN or infinite. Nothing is raised. float32 and float64 are right, and so is a matrix of one row.
# It needs PyTorch itself; the build for the CPU is enough. Seen with torch 2.13.0:
#   torch 2.13.0+cpu
#   torch.float32   exp of the identity 2.71828        of 0.01 times it 1.01005
#   torch.float16   exp of the identity -20896         of 0.01 times it nan
#   torch.bfloat16  exp of the identity -1.29736e+30   of 0.01 times it nan
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PYTHON'
import math

import torch

print("torch", torch.__version__)
found = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    identity = torch.eye(2, dtype=dtype)
    large, small = (float(torch.matrix_exp(matrix)[0, 0]) for matrix in (identity, identity * 0.01))
    found[dtype] = large, small
    print(f"{str(dtype):<15} exp of the identity {large:<14g} of 0.01 times it {small:g}")
    one_row = float(torch.matrix_exp(torch.ones(1, 1, dtype=dtype)))
    assert abs(one_row - math.e) < 0.02, "a matrix of one row is wrong"

assert abs(found[torch.float32][0] - math.e) < 1e-5, "the reference is wrong"
for dtype in (torch.float16, torch.bfloat16):
    assert found[dtype][0] < 0 and not math.isfinite(found[dtype][1]), f"{dtype}: the results are others now"
PYTHON
