#!/usr/bin/env bash
# torch.linalg.lu_solve documents that the batch dimensions of its arguments broadcast. On the CPU it does not find the
# pivots of a batch that is expanded along its last dimension: only the first matrix of the batch is solved rightly.
# So are derivatives under vmap, whose rules for det, slogdet and solve call it with such a batch.
# It needs PyTorch itself; the build for the CPU is enough. Seen with torch 2.13.0:
#   torch 2.13.0+cpu
#   largest residual of each of 5 systems, broadcast: 1.0e-15 7.1e+01 1.2e+03 2.9e+00 3.3e+02
#   largest residual of each of 5 systems, expanded:  1.0e-15 2.2e-16 2.2e-16 2.2e-16 4.4e-16
#   vmap(jacfwd(det)) is right for: True False False False False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PYTHON'
import torch

print("torch", torch.__version__)
coins = torch.Generator().manual_seed(0)
matrices = torch.randn(5, 3, 3, dtype=torch.float64, generator=coins) + 3 * torch.eye(3, dtype=torch.float64)
matrices = matrices.flip(-2)  # so that rows change places
right = torch.randn(5, 9, 3, 1, dtype=torch.float64, generator=coins)
lu, pivots = torch.linalg.lu_factor(matrices)


def errors(solution):
    left = matrices[:, None] @ solution - right
    return [float(each.abs().max()) for each in left]


broadcast = errors(torch.linalg.lu_solve(lu[:, None], pivots[:, None], right))
expanded = errors(
    torch.linalg.lu_solve(
        lu[:, None].expand(5, 9, 3, 3).contiguous(), pivots[:, None].expand(5, 9, 3).contiguous(), right
    )
)
print("largest residual of each of 5 systems, broadcast:", *(f"{each:.1e}" for each in broadcast))
print("largest residual of each of 5 systems, expanded: ", *(f"{each:.1e}" for each in expanded))

jacobian = torch.func.jacfwd(torch.linalg.det)
together = torch.func.vmap(jacobian)(matrices)
alone = torch.stack([jacobian(matrix) for matrix in matrices])
right_for = [torch.allclose(a, b) for a, b in zip(together, alone)]
print("vmap(jacfwd(det)) is right for:", *right_for)

assert max(expanded) < 1e-9, "the reference is wrong"
assert broadcast[0] < 1e-9 and min(broadcast[1:]) > 1e-3, "batches of pivots broadcast now"
assert right_for == [True, False, False, False, False], "derivatives under vmap are others now"
PYTHON
