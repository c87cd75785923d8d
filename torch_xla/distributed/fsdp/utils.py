"""Tools for divided modules: activation checkpointing, a linear layer, and collectives without communication.

The dummy collectives return results of the right shape without communication. They show the cost of a step without
its messages.
"""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import MethodType
from typing import Any

import torch
from torch import nn

from ...core import collectives
from ...utils.checkpoint import checkpoint


def checkpoint_module(module: nn.Module) -> nn.Module:
    """Make `module` keep only its inputs for the backward pass and recompute the rest there; return `module`.

    A `XlaFullyShardedDataParallel` gathers the parameters for the recomputation too, if it wraps
    `checkpoint_module(layer)`, not the other way round.

    >>> layer = checkpoint_module(nn.Linear(2, 2)).to("xla")
    >>> layer(torch.ones(1, 2, device="xla")).sum().backward()
    >>> layer.weight.grad.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    forward = module.forward

    @wraps(forward)
    def checkpointed(self: nn.Module, *args: object, **kwargs: object) -> object:
        return checkpoint(partial(forward, **kwargs), *args, use_reentrant=False)

    module.forward = MethodType(checkpointed, module)  # type: ignore[method-assign]
    return module


def dummy_all_gather(value: torch.Tensor, dim: int = 0, groups: Sequence[Sequence[int]] | None = None) -> torch.Tensor:
    """Repeat `value` along `dim` as often as there are replicas: an `all_gather` without communication.

    >>> dummy_all_gather(torch.ones(2, device="xla")).tolist()
    [1.0, 1.0]
    """
    return torch.cat([value] * _size_of(groups), dim)


def dummy_all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    scale: float = 1.0,
    groups: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor | Sequence[torch.Tensor]:
    """Multiply `inputs` by `scale` without communication: return a new tensor, or change a list in place.

    >>> dummy_all_reduce("sum", torch.ones(2), scale=0.5).tolist()
    [0.5, 0.5]
    """
    if isinstance(inputs, torch.Tensor):
        return inputs * scale
    for tensor in inputs:
        tensor.mul_(scale)
    return inputs


class DummyReduceScatter:
    """A `reduce_scatter` without communication: it returns the first part of its input.

    >>> got = []
    >>> DummyReduceScatter(shard_count=2)(torch.arange(4), got.append)
    >>> got
    [tensor([0, 1])]
    """

    def __init__(self, shard_count: int) -> None:
        self.shard_count = shard_count
        self.scale = 1.0

    def __call__(self, input: torch.Tensor, callback: Callable[[torch.Tensor], object]) -> None:
        callback(
            input.chunk(self.shard_count)[0] * self.scale if self.scale != 1.0 else input.chunk(self.shard_count)[0]
        )

    def flush(self) -> None:
        """Do nothing: no tensor waits."""


class BucketizedReduceScatter:
    """A `reduce_scatter` along dimension 0 that collects tensors until they have `bucket_size_mb` MiB.

    Each call takes a tensor and a callback. The callback receives this process's part of the sum, at the latest in
    `flush()`. With `bucket_size_mb=0` no tensor waits. The sums are multiplied by `scale`. All processes must make the
    same calls.

    >>> got = []
    >>> exchange = BucketizedReduceScatter(1, shard_count=1, groups=None, pin_layout=True)
    >>> exchange(torch.ones(2, device="xla"), got.append)
    >>> len(got), exchange.flush(), got[0].tolist()
    (0, None, [1.0, 1.0])
    """

    def __init__(
        self, bucket_size_mb: float, shard_count: int, groups: Sequence[Sequence[int]] | None, pin_layout: bool
    ) -> None:
        self.bucket_size_bytes = int(bucket_size_mb * 2**20)
        self.shard_count = shard_count
        self.groups = groups
        self.pin_layout = pin_layout
        self.scale = 1.0
        self._waiting: list[tuple[torch.Tensor, Callable[[torch.Tensor], object]]] = []

    def __call__(self, input: torch.Tensor, callback: Callable[[torch.Tensor], object]) -> None:
        size = input.numel() * input.element_size()
        held = sum(tensor.numel() * tensor.element_size() for tensor, _ in self._waiting)
        if self._waiting and (held + size > self.bucket_size_bytes or input.dtype != self._waiting[0][0].dtype):
            self.flush()
        self._waiting.append((input, callback))
        if size >= self.bucket_size_bytes:
            self.flush()

    def flush(self) -> None:
        """Exchange the waiting tensors in one message, and call the callbacks."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        rows = [tensor.reshape(self.shard_count, -1) for tensor, _ in waiting]
        own = collectives.reduce_scatter(
            collectives.REDUCE_SUM, torch.cat(rows, 1), self.scale, 0, self.shard_count, self.groups
        )
        assert isinstance(own, torch.Tensor)
        for (tensor, callback), part in zip(waiting, own.split([row.shape[1] for row in rows], 1), strict=True):
            callback(part.reshape(tensor.shape[0] // self.shard_count, *tensor.shape[1:]))


class XLAPatchedLinear(torch.autograd.Function):
    """`torch.nn.functional.linear` whose backward pass reads the given weight, not a copy.

    >>> x, weight = torch.ones(1, 2, requires_grad=True), torch.ones(3, 2)
    >>> XLAPatchedLinear.apply(x, weight).sum().backward()
    >>> x.grad.tolist()
    [[3.0, 3.0]]
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product of `input` (..., n) and `weight` (m, n), plus `bias` (m), of shape (..., m)."""
        ctx.save_for_backward(input, weight)
        ctx.has_bias = bias is not None
        return nn.functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of input, weight and bias."""
        (grad,) = grads
        input, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        flat = grad.reshape(-1, grad.shape[-1])
        return (
            grad @ weight if wanted[0] else None,
            flat.t() @ input.reshape(-1, input.shape[-1]) if wanted[1] else None,
            flat.sum(0) if ctx.has_bias and wanted[2] else None,
        )


def _linear_by_function(self: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = XLAPatchedLinear.apply(input, self.weight, self.bias)
    return result


def apply_xla_patch_to_nn_linear(
    module: nn.Module, patched_function: Callable[..., torch.Tensor] = _linear_by_function
) -> nn.Module:
    """Give every `nn.Linear` in `module` the forward pass `patched_function(linear, input)`, and return `module`.

    >>> model = apply_xla_patch_to_nn_linear(nn.Sequential(nn.Linear(2, 3)))
    >>> model(torch.ones(1, 2)).shape
    torch.Size([1, 3])
    """
    for each in module.modules():
        if isinstance(each, nn.Linear):
            each.forward = MethodType(patched_function, each)  # type: ignore[method-assign]
    return module


def _size_of(groups: Sequence[Sequence[int]] | None) -> int:
    own = collectives.get_ordinal()
    return next((len(group) for group in groups or () if own in group), collectives.xrt_world_size())
