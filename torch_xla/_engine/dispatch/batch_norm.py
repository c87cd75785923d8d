"""Batch norm writes its running statistics without saying so in its schema: a kernel of its own."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .kernels import recorder

_statistics = recorder("aten::_native_batch_norm_legit_functional")
_without_statistics = recorder("aten::_native_batch_norm_legit.no_stats")
_inference = recorder("aten::_native_batch_norm_legit_no_training")


def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, mean and inverse deviation of the batch; in training the running statistics are updated in place."""
    if running_mean is None or running_var is None:
        if not training:
            raise RuntimeError("batch_norm(): running_mean and running_var must be given when training is False")
        result: Any = _without_statistics(input, weight, bias, training, momentum, eps)
        return tuple(result)
    if not training:
        result = _inference(input, weight, bias, running_mean, running_var, momentum, eps)
        return tuple(result)
    out, mean, invstd, new_mean, new_var = _statistics(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    running_mean.copy_(new_mean)
    running_var.copy_(new_var)
    return out, mean, invstd


KERNELS: dict[str, Callable[..., Any]] = {
    "native_batch_norm": native_batch_norm,
    "_native_batch_norm_legit": native_batch_norm,
}
