"""Operations that are recorded and did not run."""

import torch

from torch_xla._engine.step.partition import FEW


def prolonged(x: torch.Tensor) -> torch.Tensor:
    """Return `x` behind enough operations for a read of another value to leave them on the tape."""
    for _ in range(FEW):
        x = x + 0
    return x
