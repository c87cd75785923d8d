"""Collectives with gradients: `import torch_xla.core.functions as xf`."""

from collections.abc import Sequence
from typing import Any

import torch

from .._engine import distributed
from . import collectives


class AllReduceSumLayer(torch.autograd.Function):
    """The sum over the replicas. Its gradient is the sum of the gradients of all replicas."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of `x` as a new tensor."""
        result = collectives.all_reduce(collectives.REDUCE_SUM, x)
        assert isinstance(result, torch.Tensor)
        return result

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> torch.Tensor | Sequence[torch.Tensor]:
        """Return the gradient of `x`."""
        return collectives.all_reduce(collectives.REDUCE_SUM, grads[0])


class AllReduce(torch.autograd.Function):
    """`xm.all_reduce` with the gradient of PyTorch/XLA: that of this replica's own result, without communication.

    `xm.optimizer_step` averages such gradients over the replicas afterwards.
    """

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, reduce_type: str, scale: float = 1.0, groups: collectives.Groups = None
    ) -> torch.Tensor:
        """Return the reduction of `input` as a new tensor."""
        ctx.reduce_type, ctx.scale = reduce_type, scale
        result = collectives.all_reduce(reduce_type, input, 1.0, groups)
        assert isinstance(result, torch.Tensor)
        ctx.save_for_backward(input, result)
        return distributed.scaled(result, scale)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Return the gradient of `input`."""
        value, result = ctx.saved_tensors
        grad = distributed.scaled(grads[0], ctx.scale)
        if ctx.reduce_type == collectives.REDUCE_MUL:
            grad = grad * torch.where(value != 0, result / value, 0)
        elif ctx.reduce_type in (collectives.REDUCE_MIN, collectives.REDUCE_MAX):
            grad = torch.where(value == result, grad, 0)
        return grad, None, None, None


class AllGather(torch.autograd.Function):
    """`all_gather` with its gradient: each replica gets the part that belongs to its own input."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the values of all replicas along `dim` as a new tensor."""
        ctx.dim, ctx.size = dim, value.size(dim)
        result = collectives.all_gather(value, dim)
        assert isinstance(result, torch.Tensor)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient of `value`."""
        return grads[0].narrow(ctx.dim, collectives.get_ordinal() * ctx.size, ctx.size), None


def all_reduce(
    reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: collectives.Groups = None
) -> torch.Tensor:
    """Reduce one tensor over the replicas as `xm.all_reduce` does, multiply by `scale`, and return a new tensor.

    The gradient of a sum is that of this replica's own result, times `scale`: gradients of other replicas are not
    added, as in PyTorch/XLA. `xm.all_reduce` itself has the gradient of the sum of all replicas' results.

    >>> import torch, torch_xla.core.functions as xf, torch_xla.core.xla_model as xm
    >>> x = torch.ones(2, device="xla", requires_grad=True)
    >>> xf.all_reduce(xm.REDUCE_SUM, x, scale=0.5).sum().backward()
    >>> x.grad.tolist()
    [0.5, 0.5]
    """
    result: torch.Tensor = AllReduce.apply(value, reduce_type, scale, groups)
    return result


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Gather one tensor as `xm.all_gather` does: concatenate the values of all replicas along `dim`.

    >>> import torch, torch_xla.core.functions as xf
    >>> x = torch.ones(2, device="xla", requires_grad=True)
    >>> xf.all_gather(x).sum().backward()
    >>> x.grad.tolist()
    [1.0, 1.0]
    """
    result: torch.Tensor = AllGather.apply(value, dim)
    return result


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """Return `W @ x`: the columns of `W` are divided among the replicas, and each replica has its own `x`.

    `w` of shape (n, k) holds the columns of this replica; `W` has the columns of all replicas in the order of their
    ordinals. `x` has shape (k * replicas, m), the result (n, m). Each replica computes the contribution of its columns
    to the products of all replicas. `split` is the number of parts into which m is divided; the parts are computed one
    after the other, which takes less memory. Gradients flow to `w` and `x`. Raises `ValueError` for sizes that do not
    fit.

    >>> import torch, torch_xla.core.functions as xf
    >>> xf.distributed_mm(torch.ones(2, 3, device="xla"), torch.ones(3, 4, device="xla"), split=2).shape
    torch.Size([2, 4])
    """
    count = collectives.xrt_world_size()
    if w.dim() != 2 or x.dim() != 2 or x.shape[0] != w.shape[1] * count:
        raise ValueError(
            f"distributed_mm(): w has shape {list(w.shape)} and x {list(x.shape)}; with {count} replicas w of "
            f"(n, k) needs x of (k * {count}, m)"
        )
    if split < 1 or x.shape[1] % split:
        raise ValueError(f"distributed_mm(): split is {split}; it must divide m, the {x.shape[1]} columns of x")
    products: list[torch.Tensor] = []
    for part in x.split(x.shape[1] // split, 1):
        rows = collectives.all_to_all(part, 0, 1, count)
        products += collectives.reduce_scatter(collectives.REDUCE_SUM, [w @ rows], 1.0, 1, count)
    return torch.cat(products, 1)


class SyncBatchNorm(torch.nn.Module):
    """Batch normalization over the batches of all replicas, for inputs (n, c), (n, c, l) up to five dimensions.

    In training, mean and variance are those of the elements of all replicas, whose numbers may differ. The running
    statistics move by `momentum` and are used in evaluation. Gradients flow through the statistics as in one process.

    >>> import torch, torch_xla.core.functions as xf
    >>> norm = xf.SyncBatchNorm(3).to("xla")
    >>> norm(torch.arange(6.0, device="xla").view(2, 3)).tolist()[0][0] < 0
    True
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the normalized batch, of the same shape and dtype."""
        if not 2 <= batch.dim() <= 5 or batch.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm: expected 2 to 5 dimensions, the second of {self.num_features}, got {list(batch.shape)}"
            )
        shape = (1, -1, *(1,) * (batch.dim() - 2))
        x = batch.to(self.weight.dtype)
        if self.training:
            mean, variance, count = self._moments(x, shape)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * count / (count - 1).clamp(min=1), self.momentum)
        else:
            mean, variance = self.running_mean, self.running_var
        scale = (variance + self.eps).rsqrt() * self.weight
        return ((x - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)).to(batch.dtype)

    def _moments(self, x: torch.Tensor, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        dims = [dim for dim in range(x.dim()) if dim != 1]
        own = torch.cat([x.sum(dims), x.new_full((1,), x.numel() // self.num_features)])
        total = AllReduceSumLayer.apply(own)
        mean, count = total[:-1] / total[-1], total[-1]
        # Of differences to the mean of all: a difference of two large sums would lose what is small.
        squares = AllReduceSumLayer.apply((x - mean.view(shape)).square().sum(dims))
        return mean, squares / count, count.detach()

    def extra_repr(self) -> str:
        """Return the arguments, for `repr`."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"
