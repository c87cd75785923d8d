"""`out=` forms of operators that compute, count or convert in another way for the tensor that they write to."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..out_variants import fill_out
from ..recording_kernel import Kernel, out_variant, recorder
from .linear_algebra import cholesky
from .memory_assumptions import rrelu_with_noise


def _copied_out(compute: Kernel) -> Kernel:
    """Return an `out=` form that PyTorch computes on the side and copies: strides of the result are none of `out`."""

    def kernel(*args: object, out: Tensor, **kwargs: object) -> Tensor:
        fill_out(out, compute(*args, **kwargs).contiguous())
        return out

    return kernel


_OTHER_COUNT = (
    "The number of elements in the out tensor of shape {0} is {1} which does not match the computed number of elements "
    "{2}. Note that this may occur as a result of rounding error. The out tensor will be resized to a tensor of shape "
    "({2},)."
)


def _in_order(name: str) -> Kernel:
    """Return an `out=` form that writes its numbers one after the other into memory of any size with as many
    elements.
    """
    fill = out_variant(f"aten::{name}")

    def kernel(*args: Any, out: Tensor, **kwargs: object) -> Tensor:
        if name == "range.out":
            _refuse_step(out.dtype, *args)
        numbers = torch.empty(0, dtype=out.dtype, device=out.device)
        fill(*args, out=numbers, **kwargs)
        if numbers.numel() == out.numel():
            numbers = numbers.view(out.shape)
        elif out.numel() and name.startswith("arange"):
            warnings.warn(_OTHER_COUNT.format(list(out.shape), out.numel(), numbers.numel()), stacklevel=3)
        fill_out(out, numbers, warns=False)
        return out

    return kernel


_range = recorder("aten::range.step")
_fill_range = _in_order("range.out")


def _refuse_step(dtype: torch.dtype | None, start: float, end: float, step: float = 1) -> None:
    """Refuse a step that an integer dtype truncates to 0: PyTorch divides by it, which ends the process."""
    if dtype is not None and not dtype.is_floating_point and 0 < abs(step) < 1:
        raise RuntimeError(f"step must be nonzero; got {step}, which is 0 in {dtype}. Give a step of at least 1.")


def range_step(
    start: float, end: float, step: float = 1, *, dtype: torch.dtype | None = None, **kwargs: object
) -> object:
    """Implement `torch.range`."""
    _refuse_step(dtype, start, end, step)
    return _range(start, end, step, dtype=dtype, **kwargs)


def range_out(start: float, end: float, *, out: Tensor) -> object:
    """Implement `range.out_`, the form without a step."""
    return _fill_range(start, end, 1, out=out)


def _of_the_dtype_of_out(name: str) -> Kernel:
    """Return an `out=` form that converts to the dtype of `out` before it computes, unless the call names a dtype."""
    fill = out_variant(f"aten::{name}")

    def kernel(self: Tensor, *args: object, dtype: torch.dtype | None = None, out: Tensor, **kwargs: object) -> object:
        if dtype is None and self.dtype is not out.dtype:
            if name.startswith("mean") and out.dtype in (torch.float16, torch.bfloat16):
                self = self.to(torch.float32)  # a mean alone is rounded at its end
            else:
                dtype = out.dtype
        return fill(self, *args, dtype=dtype, out=out, **kwargs)

    return kernel


# `nanmean` calls them. `sum.out` and `prod.out`, of all elements, convert their results.
_CONVERTING = (
    "cumprod.out", "cumsum.out", "mean.dtype_out", "mean.out", "nansum.out", "prod.int_out", "sum.IntList_out",
)  # fmt: skip


def _of_dimensions(record: Kernel) -> Kernel:
    """Return a form of `_chunk_cat` that refuses what PyTorch's kernel reads sizes of that are not there."""

    def kernel(tensors: Sequence[Tensor], *args: object, **kwargs: object) -> object:
        of_none = [place for place, tensor in enumerate(tensors) if not tensor.dim()]
        if of_none:
            raise RuntimeError(
                f"torch._chunk_cat expects tensors with one dimension or more, but tensor {of_none[0]} of "
                f"{len(tensors)} has none. Give it one: tensor.reshape(1)."
            )
        return record(tensors, *args, **kwargs)

    return kernel


_scaled_mm_into = out_variant("aten::_scaled_mm.out")


def scaled_mm_out(
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    *,
    out: Tensor,
) -> object:
    """Implement `torch._scaled_mm` into `out`, whose dtype the result has where the call names none."""
    dtype = out.dtype if out_dtype is None else out_dtype
    return _scaled_mm_into(self, mat2, scale_a, scale_b, bias, scale_result, dtype, use_fast_accum, out=out)


KERNELS: dict[str, Callable[..., object]] = {
    "_chunk_cat": _of_dimensions(recorder("aten::_chunk_cat")),
    "_chunk_cat.out": _of_dimensions(out_variant("aten::_chunk_cat.out")),
    "rrelu_with_noise.out": _copied_out(rrelu_with_noise),
    "range.out": _fill_range,
    "range.out_": range_out,
    "range.step": range_step,
    "_scaled_mm.out": scaled_mm_out,
    **{name: _of_the_dtype_of_out(name) for name in _CONVERTING},
    **{name: _in_order(name) for name in ("arange.start_out", "linspace.out", "logspace.out")},
    "cholesky.out": _copied_out(cholesky),
    **{f"{name}.out": _copied_out(recorder(f"aten::{name}")) for name in ("_fft_c2c", "_fft_r2c", "_fft_c2r")},
}
