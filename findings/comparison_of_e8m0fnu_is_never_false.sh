#!/usr/bin/env bash
# torch.eq and torch.ne of float8_e8m0fnu tensors write a comparison into an out= tensor of floats by way of the dtype
# of the operands. That dtype has no zero, so False arrives as 2**-127, which is true as a bool. Without out=, and for
# other float8 kinds, False is False.
# It needs PyTorch itself; the build for the CPU is enough. Seen with torch 2.13.0:
#   torch 2.13.0+cpu
#   float8_e8m0fnu: bool [True, False] float32 [1.0, 5.877471754111438e-39] read as bool [True, True]
#   float8_e4m3fn: bool [True, False] float32 [1.0, 0.0] read as bool [True, False]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PYTHON'
import torch

print("torch", torch.__version__)
read = {}
for dtype in (torch.float8_e8m0fnu, torch.float8_e4m3fn):
    x, y = (torch.tensor(values).to(dtype) for values in ([1.0, 2.0], [1.0, 4.0]))
    out = torch.empty(2)
    torch.eq(x, y, out=out)
    plain, read[dtype] = torch.eq(x, y).tolist(), out.bool().tolist()
    print(f"{str(dtype)[6:]}: bool {plain} float32 {out.tolist()} read as bool {read[dtype]}")
    assert plain == [True, False]
assert read[torch.float8_e4m3fn] == [True, False]
assert read[torch.float8_e8m0fnu] == [True, True], "False is zero now"
PYTHON
