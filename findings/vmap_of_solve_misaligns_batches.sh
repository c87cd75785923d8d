#!/usr/bin/env bash
# torch.vmap of torch.linalg.solve over the right-hand sides alone, which have more batch dimensions than the matrix,
# aligns its vmapped dimension with one of theirs. The result has another shape, and jacrev of solve, which uses it, is
# silently wrong, on every device. jacfwd is right.
# It needs PyTorch itself; the build for the CPU is enough. Seen with torch 2.13.0:
#   torch 2.13.0+cpu
#   one by one: (5, 1, 4, 3, 2), vmap: (5, 5, 4, 3, 2)
#   largest error of jacfwd: 1.2e-09, of jacrev: 1.7e+02
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PYTHON'
import torch

print("torch", torch.__version__)
coins = torch.Generator().manual_seed(0)
matrices = torch.randn(5, 1, 3, 3, dtype=torch.float64, generator=coins) + 3 * torch.eye(3, dtype=torch.float64)
right = torch.randn(1, 4, 3, 2, dtype=torch.float64, generator=coins)
several = right.expand(5, 1, 4, 3, 2)

matrix = matrices[0]
alone = torch.stack([torch.linalg.solve(matrix, each) for each in several])
together = torch.vmap(torch.linalg.solve, in_dims=(None, 0))(matrix, several)
print(f"one by one: {tuple(alone.shape)}, vmap: {tuple(together.shape)}")

expected = torch.zeros(1, 4, 3, 2, 1, 3, 3, dtype=torch.float64)
for row in range(3):
    for column in range(3):
        step = torch.zeros_like(matrix)
        step[0, row, column] = 1e-6
        difference = torch.linalg.solve(matrix + step, right) - torch.linalg.solve(matrix - step, right)
        expected[..., 0, row, column] = difference / 2e-6
forward, reverse = (
    float((jacobian(torch.linalg.solve)(matrix, right) - expected).abs().max())
    for jacobian in (torch.func.jacfwd, torch.func.jacrev)
)
print(f"largest error of jacfwd: {forward:.1e}, of jacrev: {reverse:.1e}")
assert forward < 1e-6, "the reference is wrong"
assert alone.shape != together.shape and reverse > 1, "batches are aligned now"
PYTHON
