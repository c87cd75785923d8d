"""The operators of a synchronized batch norm that write running statistics, which their schemas do not declare.

They are composed of operators whose schemas declare their writes, so that PyTorch's transforms and traces see them too.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...compat.names import torch as private
from ...tensor.storage import hold_together, value_of
from ..call_planning import type_name
from ..out_variants import fill_all

_HALVES = (torch.bfloat16, torch.float16)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALVES else tensor


def _move(
    olds: tuple[Tensor | None, Tensor | None], mean: Tensor, variance: Tensor, count: object, momentum: float
) -> None:
    """Move the running statistics towards the mean and the unbiased variance of `count` rows."""
    counted = torch.as_tensor(count, dtype=mean.dtype, device=mean.device)
    news = mean, variance * (counted / (counted - 1))
    pairs = [
        (old, (_wide(old) * (1 - momentum) + new * momentum).to(old.dtype))
        for old, new in zip(olds, news, strict=True)
        if old is not None
    ]
    if private.calls_are_watched():
        for old, moved in pairs:
            old.copy_(moved)
    elif pairs:
        hold_together([old for old, _ in pairs], [value_of(moved) for _, moved in pairs])


def update_stats(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float
) -> tuple[Tensor, Tensor]:
    """Implement `torch.batch_norm_update_stats`: mean and biased variance of each channel of a batch."""
    channels, olds = input.size(1), (running_mean, running_var)
    kept = {old.dtype for old in olds if old is not None}
    if not input.is_floating_point() or input.dtype.itemsize == 1:
        raise NotImplementedError(f"\"batch_norm_update_stats_cpu\" not implemented for '{type_name(input.dtype)}'")
    if input.numel() == 0:
        raise RuntimeError(f"input tensor must have at least one element, but got input_sizes = {list(input.shape)}")
    if kept - {input.dtype} and (input.dtype not in _HALVES or kept != {torch.float32}):
        raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")
    variance, mean = torch.var_mean(_wide(input), [0, *range(2, input.dim())], correction=0)
    _move(olds, mean, variance, input.numel() // channels, momentum)
    dtype = torch.float32 if torch.float32 in kept else input.dtype
    return mean.to(dtype), variance.to(dtype)


def gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Implement `torch.batch_norm_gather_stats_with_counts`: mean and inverse deviation over all rows, one for each
    process.
    """
    means, weights = _wide(mean), counts.to(_wide(mean).dtype).reshape(-1, 1)
    total = weights.sum()
    union = (means * weights).sum(0) / total
    squares = _wide(invstd).square().reciprocal() - eps + (means - union).square()
    variance = (squares * weights).sum(0) / total
    _move((running_mean, running_var), union, variance, total, momentum)
    return union, (variance + eps).rsqrt()


def gather_stats(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """Implement `torch.batch_norm_gather_stats`: each process had as many rows."""
    counts = torch.full(mean.shape[:1], float(count), device=mean.device)
    return gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def _out(kernel: Callable[..., Any]) -> Callable[..., object]:
    def fill(*args: object, out0: Tensor, out1: Tensor) -> tuple[torch.Tensor, ...]:
        fill_all((out0, out1), kernel(*args))
        return out0, out1

    return fill


class _WithoutDerivative(torch.autograd.Function):
    """Results that depend on what requires a gradient, and have none: to ask for it is an error, as on the CPU."""

    @staticmethod
    def forward(ctx: Any, name: str, kernel: Callable[..., object], *args: object) -> Any:
        ctx.name = name
        return kernel(*args)

    @staticmethod
    def backward(ctx: Any, *_: object) -> object:
        raise RuntimeError(f"derivative for aten::{ctx.name} is not implemented")


def _above_autograd(name: str, kernel: Callable[..., object]) -> Callable[..., object]:
    def call(*args: object) -> object:
        if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
            return _WithoutDerivative.apply(name, kernel, *args)  # type: ignore[no-untyped-call]
        with private.below_autograd():
            return kernel(*args)

    return call


_OPERATORS: dict[str, Callable[..., object]] = {
    "batch_norm_update_stats": update_stats,
    "batch_norm_gather_stats": gather_stats,
    "batch_norm_gather_stats_with_counts": gather_stats_with_counts,
}

KERNELS: dict[str, Callable[..., object]] = {
    **_OPERATORS,
    **{f"{name}.out": _out(kernel) for name, kernel in _OPERATORS.items()},
}


def register_above_autograd() -> torch.library.Library:
    """Register the kernels above autograd, so that a trace records their writes as separate operators."""
    library = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
    for name, kernel in _OPERATORS.items():
        library.impl(name, _above_autograd(name, kernel), "AutogradPrivateUse1")
    return library
