#!/usr/bin/env bash
# torch.bmm and torch.addmm take the dtype of their result as out_dtype, and describe it on meta tensors. The same call
# of torch.baddbmm always raises there: its description takes the dtype for beta.
# It needs PyTorch itself; the build for the CPU is enough. Seen with torch 2.13.0:
#   torch 2.13.0+cpu
#   bmm: torch.float32 (2, 3, 4)
#   addmm: torch.float32 (3, 4)
#   baddbmm: TypeError: unsupported operand type(s) for *: 'Tensor' and 'torch.dtype'
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PYTHON'
import torch


def described(name, *sizes):
    dtypes = [torch.float32] * (len(sizes) - 2) + [torch.bfloat16] * 2
    operands = [torch.empty(size, dtype=dtype, device="meta") for size, dtype in zip(sizes, dtypes)]
    try:
        result = getattr(torch, name)(*operands, out_dtype=torch.float32)
    except TypeError as error:
        return f"TypeError: {error}"
    return f"{result.dtype} {tuple(result.shape)}"


print("torch", torch.__version__)
found = {
    "bmm": described("bmm", (2, 3, 5), (2, 5, 4)),
    "addmm": described("addmm", (3, 4), (3, 5), (5, 4)),
    "baddbmm": described("baddbmm", (2, 3, 4), (2, 3, 5), (2, 5, 4)),
}
for name, text in found.items():
    print(f"{name}: {text}")
assert found["bmm"] == "torch.float32 (2, 3, 4)" and found["addmm"] == "torch.float32 (3, 4)"
assert found["baddbmm"].startswith("TypeError"), "baddbmm is described now"
PYTHON
