"""Collectives that gradients flow through: `import torch_xla.core.functions as xf`."""

from typing import Any

import torch

from . import collectives


class AllReduce(torch.autograd.Function):
    """`all_reduce` with the gradient of a sum: the sum over the replicas of the gradients of what each received."""

    @staticmethod
    def forward(
        ctx: Any, reduce_type: str, value: torch.Tensor, scale: float, groups: collectives.Groups
    ) -> torch.Tensor:
        """The reduction of `value`, a new tensor."""
        ctx.scale, ctx.groups = scale, groups
        result = collectives.all_reduce(reduce_type, value, scale, groups)
        assert isinstance(result, torch.Tensor)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """The gradient of `value`."""
        return None, collectives.all_reduce(collectives.REDUCE_SUM, grads[0], ctx.scale, ctx.groups), None, None


class AllGather(torch.autograd.Function):
    """`all_gather` with its gradient: each replica gets the part that belongs to what it gave."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dim: int) -> torch.Tensor:
        """The values of all replicas along `dim`, a new tensor."""
        ctx.dim, ctx.size = dim, value.size(dim)
        result = collectives.all_gather(value, dim)
        assert isinstance(result, torch.Tensor)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """The gradient of `value`."""
        return grads[0].narrow(ctx.dim, collectives.get_ordinal() * ctx.size, ctx.size), None


def all_reduce(
    reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: collectives.Groups = None
) -> torch.Tensor:
    """`xm.all_reduce` of one tensor: the reduction over the replicas, times `scale`, as a new tensor.

    >>> import torch, torch_xla.core.functions as xf, torch_xla.core.xla_model as xm
    >>> x = torch.ones(2, device="xla", requires_grad=True)
    >>> xf.all_reduce(xm.REDUCE_SUM, x, scale=0.5).sum().backward()
    >>> x.grad.tolist()
    [0.5, 0.5]
    """
    result = collectives.all_reduce(reduce_type, value, scale, groups)
    assert isinstance(result, torch.Tensor)
    return result


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """`xm.all_gather` of one tensor: the values of all replicas along `dim`, in the order of their ordinals.

    >>> import torch, torch_xla.core.functions as xf
    >>> x = torch.ones(2, device="xla", requires_grad=True)
    >>> xf.all_gather(x).sum().backward()
    >>> x.grad.tolist()
    [1.0, 1.0]
    """
    result: torch.Tensor = AllGather.apply(value, dim)
    return result
