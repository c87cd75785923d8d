"""Collectives that gradients flow through."""

from typing import Any

import torch

from .collective_arguments import scaled
from .collectives import Groups, all_gather, all_reduce, all_to_all, permute
from .collectives import reduce_scatter as reduce_scatter_values


class Reduced(torch.autograd.Function):
    """A reduction over the processes of a group, times a scale.

    The gradient is that of the sum of all processes' losses.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, reduction: str, scale: float, groups: Groups) -> torch.Tensor:
        """Return a new tensor."""
        ctx.reduction, ctx.scale, ctx.groups = reduction, scale, groups
        (result,) = all_reduce([value], reduction, groups)
        if reduction in ("min", "max"):
            ctx.save_for_backward(value, result)
        return scaled(result, scale)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Return the gradient of the value."""
        if ctx.reduction not in ("sum", "min", "max"):
            raise NotImplementedError(f"all_reduce({ctx.reduction!r}): gradients flow through sum, min and max only")
        (total,) = all_reduce([grads[0]], "sum", ctx.groups)
        total = scaled(total, ctx.scale)
        if ctx.reduction != "sum":
            value, result = ctx.saved_tensors
            # As in PyTorch's `amax`, equal elements share the gradient.
            here = (value == result).to(total.dtype)
            (equal,) = all_reduce([here], "sum", ctx.groups)
            total = total * here / equal
        return total, None, None, None


class Gathered(torch.autograd.Function):
    """The values of a group along a dimension. Each process gets the part of its own gradient that it gave."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dim: int, place: int, groups: Groups) -> torch.Tensor:
        """Return a new tensor."""
        ctx.dim, ctx.place, ctx.size = dim, place, value.size(dim)
        return all_gather([value], dim, groups)[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Return the gradient of the value."""
        return grads[0].narrow(ctx.dim, ctx.place * ctx.size, ctx.size), None, None, None


class Permuted(torch.autograd.Function):
    """Values sent from one process to another; gradients are sent in the opposite direction."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, pairs: list[tuple[int, int]]) -> torch.Tensor:
        """Return a new tensor."""
        ctx.pairs = [(target, source) for source, target in pairs]
        return permute(value, pairs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient of the value."""
        return permute(grads[0], ctx.pairs), None


class Exchanged(torch.autograd.Function):
    """Parts along one dimension that go to the other processes, and theirs along another."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, split: int, concat: int, groups: Groups) -> torch.Tensor:
        """Return a new tensor."""
        ctx.split, ctx.concat, ctx.groups = split, concat, groups
        return all_to_all(value, split, concat, groups)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Return the gradient of the value."""
        return all_to_all(grads[0], ctx.concat, ctx.split, ctx.groups), None, None, None


class Scattered(torch.autograd.Function):
    """The part of a sum over a group that falls to this process; the gradients of all parts go to every process."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dim: int, groups: Groups) -> torch.Tensor:
        """Return a new tensor."""
        ctx.dim, ctx.groups = dim, groups
        return reduce_scatter_values([value], "sum", dim, groups)[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient of the value."""
        return all_gather([grads[0]], ctx.dim, ctx.groups)[0], None, None
