"""Meta kernels for calls that PyTorch's CPU takes and its own meta kernels refuse, or give another size."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_NONE, _SUM = 0, 2
_KNOWN = (0, 1, 2)

Kernel = Callable[..., object]

# Losses whose `reduction` is another number than PyTorch's three: its position, and which of the three the CPU takes.
_REDUCTIONS = {
    aten.huber_loss.default: (2, _NONE),
    aten.multi_margin_loss.default: (5, _SUM),
    aten.multilabel_margin_loss_forward.default: (2, _SUM),
    aten.nll_loss2d_forward.default: (3, _SUM),
    aten.nll_loss_forward.default: (3, _SUM),
    aten.soft_margin_loss.default: (2, _SUM),
}


def _values_and_places(self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(self), torch.empty_like(self, dtype=torch.int64)


# Of no elements, these do not look at dimensions.
_ANY_DIMENSION: dict[Any, Kernel] = {
    aten.cummax.default: _values_and_places,
    aten.cummin.default: _values_and_places,
    aten.roll.default: lambda self, shifts, dims=(): torch.empty_like(self),
}


def _reducing(kernel: Kernel, place: int, instead: int) -> Kernel:
    def reducing(*args: Any, **kwargs: Any) -> object:
        if len(args) > place and args[place] not in _KNOWN:
            args = (*args[:place], instead, *args[place + 1 :])
        return kernel(*args, **kwargs)

    return reducing


def _of_any_dimension(kernel: Kernel, of_nothing: Kernel) -> Kernel:
    def of_any(self: Tensor, *args: Any) -> object:
        shifts, dims = args[0], args[1] if len(args) > 1 else ()
        is_odd = isinstance(shifts, list | tuple) and not 0 < len(shifts) == len(dims)
        return kernel(self, *args) if self.numel() or is_odd else of_nothing(self, *args)

    return of_any


def _of_one_sample(kernel: Kernel) -> Kernel:
    """Take a class in a list of one for a sample without a batch."""

    def of_one(self: Tensor, target: Tensor, *args: Any) -> object:
        if self.dim() == target.dim() == 1:
            if target.numel() != 1:
                raise RuntimeError(f"For 1D input, 1D target must have size 1, but got target size: {target.numel()}")
            target = target.new_empty(())
        return kernel(self, target, *args)

    return of_one


def _of_dimensions_from_the_end(kernel: Kernel) -> Kernel:
    """Count dimensions from the front, of nothing: of one counted from the end, infinite norms say that it is empty."""

    def from_the_front(
        self: Tensor, order: float = 2, dim: Sequence[int] | None = None, *args: Any, **rest: Any
    ) -> object:
        rank = self.dim()
        if dim and not self.numel() and all(-rank <= each < rank for each in dim):
            dim = [each % rank for each in dim]
        return kernel(self, order, dim, *args, **rest)

    return from_the_front


def around(kernels: dict[str, Kernel]) -> dict[str, Kernel]:
    """Return kernels that take these calls, and leave all others to the given ones or to PyTorch's own."""
    found: dict[str, Kernel] = {}
    for op, (place, instead) in _REDUCTIONS.items():
        found[op.name()] = _reducing(kernels.get(op.name(), op), place, instead)
    loss = aten.nll_loss_forward.default.name()
    found[loss] = _of_one_sample(found[loss])
    norm = aten.linalg_vector_norm.default
    found[norm.name()] = _of_dimensions_from_the_end(kernels.get(norm.name(), norm))
    for op, of_nothing in _ANY_DIMENSION.items():
        found[op.name()] = _of_any_dimension(kernels.get(op.name(), op), of_nothing)
    return found
