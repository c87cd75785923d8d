"""Decompose `torch.linalg.lstsq` in a body into operators whose result sizes can be traced."""

import torch
from torch import Tensor


def least_squares(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> object:
    """Return `torch.linalg.lstsq`, whose gradient is that of the pseudo-inverse."""
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(
            f"torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got {driver!r}"
        )
    rows, columns = A.shape[-2:]
    by_values = driver in ("gelsd", "gelss")
    if by_values and rows > columns:
        raise NotImplementedError(
            f"torch.linalg.lstsq(driver={driver!r}) of {rows} rows and {columns} columns in a body that the device "
            f"runs by itself: it gives residuals only where the rank is full, which the host would have to read. Leave "
            f"`driver` out, or use 'gels'"
        )
    is_vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B.shape == A.shape[:-1])
    right = B.unsqueeze(-1) if is_vector else B
    tolerance = torch.finfo(A.dtype).eps * max(rows, columns) if rcond is None else rcond
    solution = torch.linalg.pinv(A, rtol=0.0 if driver == "gels" else tolerance) @ right
    none = A.detach().real.new_empty(0)
    residuals = none
    if driver == "gels" and rows > columns:
        residuals = (right - A @ solution).abs().square().sum(-2)
    rank = none.long() if driver == "gels" else torch.linalg.matrix_rank(A.detach(), rtol=tolerance)
    values = torch.linalg.svdvals(A.detach()) if by_values else none
    found = solution.squeeze(-1) if is_vector else solution, residuals, rank, values
    return torch.return_types.linalg_lstsq(found)  # type: ignore[attr-defined]


FORMS = {torch.linalg.lstsq: least_squares}
