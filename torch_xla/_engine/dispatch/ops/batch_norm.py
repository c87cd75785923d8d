"""Batch norm, which writes its running statistics although its schema does not say so."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...tensor.storage import Overtaken, hold_together, value_of
from ..out_variants import fill_all
from ..recording_kernel import recorder

_statistics = recorder("aten::_native_batch_norm_legit_functional")
_without_statistics = recorder("aten::_native_batch_norm_legit.no_stats")
_inference = recorder("aten::_native_batch_norm_legit_no_training")
_gradients = recorder("aten::native_batch_norm_backward")


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
    """Return output, mean and inverse deviation of the batch; in training the running statistics are updated in
    place.
    """
    if (running_mean is None) is not (running_var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")
    if training and not input.numel():
        raise RuntimeError(f"input tensor must have at least one element, but got input_sizes = {list(input.shape)}")
    if not training:
        if running_mean is None or running_var is None:
            raise RuntimeError("batch_norm(): running_mean and running_var must be given when training is False")
        return batch_norm_in_inference(input, weight, bias, running_mean, running_var, momentum, eps)
    if running_mean is None or running_var is None:
        result: Any = _without_statistics(input, weight, bias, training, momentum, eps)
        return tuple(result)
    running = running_mean, running_var
    while True:
        read = [value_of(each) for each in running]
        out, mean, invstd, *news = _statistics(input, weight, bias, *running, training, momentum, eps)
        new = [value_of(each.to(old.dtype)) for each, old in zip(news, running, strict=True)]
        try:
            hold_together(running, new, read)
        except Overtaken:  # by another thread that uses the same layer
            continue
        return out, mean, invstd


def _nothing_saved(input: Tensor, *parameters: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the statistics saved for the backward pass of an evaluation, which are empty, as on the CPU."""
    mixed = any(t is not None and t.dtype is torch.float32 for t in parameters)
    mean, invstd = (input.new_empty(0, dtype=torch.float32 if mixed else None) for _ in range(2))
    return mean, invstd


def batch_norm_in_inference(input: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize by the running statistics."""
    *parameters, _, _ = args
    return _inference(input, *args)[0], *_nothing_saved(input, *parameters)


def batch_norm_returning_statistics(input: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Do as `native_batch_norm`, and return the new running statistics instead of writing them."""
    out, mean, invstd, *running = _statistics(input, *args)
    *parameters, training, _, _ = args
    if not training:
        mean, invstd = _nothing_saved(input, *parameters)
    return out, mean, invstd, *running


def native_batch_norm_by_name(input: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Do as `native_batch_norm`; `torch.native_batch_norm` refuses an input without dimensions by another error."""
    if not input.dim():
        raise RuntimeError(
            "native_batch_norm expects an input of (batch, channels, ...), but got a tensor without dimensions. "
            "Give it two, for example with input.reshape(1, 1)."
        )
    return native_batch_norm(input, *args)


def batch_norm_without_statistics(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize by the statistics of the batch; PyTorch's kernel for the CPU looks for others if not in training."""
    return native_batch_norm(input, weight, bias, None, None, training, momentum, eps)


def native_batch_norm_out(
    *args: Any, out: Tensor, save_mean: Tensor, save_invstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Do as `native_batch_norm`, into the given tensors."""
    outs = out, save_mean, save_invstd
    fill_all(outs, native_batch_norm(*args))
    return outs


def batch_norm_with_update(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Do as `native_batch_norm` in training; a backend may reserve something for the backward: nothing here."""
    results = native_batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *results, input.new_empty(0, dtype=torch.uint8)


def batch_norm_no_update(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Do as `native_batch_norm` in evaluation, with a reserve for the backward, which is empty."""
    results = native_batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    return *results, input.new_empty(0, dtype=torch.uint8)


def batch_norm_with_update_out(
    *args: Any, out: Tensor, save_mean: Tensor, save_invstd: Tensor, reserve: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Do as `batch_norm_with_update`, into the given tensors."""
    outs = out, save_mean, save_invstd, reserve
    fill_all(outs, batch_norm_with_update(*args))
    return outs


def batch_norm_backward(*args: object) -> tuple[torch.Tensor, ...]:
    """Return the gradients of input, weight and bias; the last argument, the reserve, is empty."""
    grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, mask, _ = args
    return _gradients(grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, mask)


KERNELS: dict[str, Callable[..., object]] = {
    "native_batch_norm": native_batch_norm_by_name,
    "native_batch_norm.out": native_batch_norm_out,
    "_native_batch_norm_legit": native_batch_norm,
    "_native_batch_norm_legit_functional": batch_norm_returning_statistics,
    "_native_batch_norm_legit_no_training": batch_norm_in_inference,
    "_native_batch_norm_legit.no_stats": batch_norm_without_statistics,
    "_native_batch_norm_legit.out": native_batch_norm_out,
    "_batch_norm_no_update": batch_norm_no_update,
    "_batch_norm_with_update": batch_norm_with_update,
    "_batch_norm_with_update.out": batch_norm_with_update_out,
    "batch_norm_backward": batch_norm_backward,
}
