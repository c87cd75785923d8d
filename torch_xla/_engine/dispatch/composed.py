"""Operators whose caller assumes something of memory that a rule on arrays cannot see."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import linear_algebra
from .kernels import Kernel, fill_out, recorder


def nested_tensor_from_mask_left_aligned(t: Tensor, mask: Tensor) -> bool:
    """False: `nn.TransformerEncoder` then keeps to padded tensors, since there are no nested ones here."""
    return False


def _copied_out(compute: Kernel) -> Kernel:
    """An `out=` form that PyTorch computes on the side and copies: strides of the result are none of `out`."""

    def kernel(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        fill_out(out, compute(*args, **kwargs).contiguous())
        return out

    return kernel


_rrelu = recorder("aten::rrelu_with_noise_functional")


def rrelu_with_noise(
    self: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The randomized leaky ReLU; `noise` is written to, although the operator returns the result alone."""
    result: Tensor
    result, slopes = _rrelu(self, noise, lower, upper, training, generator=generator)
    if training:
        noise.copy_(slopes)
    return result


KERNELS: dict[str, Callable[..., Any]] = {
    **linear_algebra.KERNELS,
    "_nested_tensor_from_mask_left_aligned": nested_tensor_from_mask_left_aligned,
    "rrelu_with_noise": rrelu_with_noise,
    "rrelu_with_noise.out": _copied_out(rrelu_with_noise),
    "cholesky.out": _copied_out(linear_algebra.cholesky),
    **{f"{name}.out": _copied_out(recorder(f"aten::{name}")) for name in ("_fft_c2c", "_fft_r2c", "_fft_c2r")},
}
