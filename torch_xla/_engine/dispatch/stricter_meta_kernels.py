"""Meta kernels that refuse what PyTorch's own do not look at. After an error of theirs, the CPU's is raised."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..compat.names.torch import pytree
from .checks import cpu_errors
from .op_schema import Operator

aten = torch.ops.aten

# Resizing operators, and how many sizes they take.
_RESIZED = {
    "_upsample_bicubic2d_aa": 2, "_upsample_bilinear2d_aa": 2, "upsample_bicubic2d": 2, "upsample_bilinear2d": 2,
    "upsample_linear1d": 1, "upsample_trilinear3d": 3,
}  # fmt: skip

_REDUCTIONS = ("prod", "mean", "amax", "amin")


def _refusing(op: Any, is_wrong: Callable[..., bool]) -> Callable[..., object]:
    """Refuse what PyTorch's own kernel does not look at: after any error here, the CPU's is raised."""

    def kernel(*args: Any, **kwargs: Any) -> object:
        if is_wrong(*args, **kwargs):
            raise RuntimeError(f"{op.name()}: the CPU refuses these sizes, dimensions or words")
        return op(*args, **kwargs)

    return kernel


def _puts_elsewhere(self: Tensor, index: Tensor, source: Tensor, *_: object) -> bool:
    return index.numel() != source.numel() or (index.numel() > 0 and not self.numel())


def _is_no_convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, *rest: Any
) -> bool:
    transposed, output_padding, groups = rest
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if (bias is not None and bias.shape != (channels,)) or 0 in input.shape[2:]:
        return True
    if not transposed:
        return False
    for way, (size, length) in enumerate(zip(input.shape[2:], weight.shape[2:], strict=False)):
        step, border, spread, added = (each[way % len(each)] for each in (stride, padding, dilation, output_padding))
        result = (size - 1) * step - 2 * border + spread * (length - 1) + added + 1
        if not 0 <= added < max(step, spread) or result < 1:
            return True
    return False


def _has_no_slice(self: Tensor, src: Tensor, *diagonal: int, **named: int) -> bool:
    return src.shape != torch.diagonal(self, *diagonal, **named).shape  # type: ignore[call-overload,no-any-return]


def _is_no_histogram(self: Tensor, bins: Tensor | int, *, weight: Tensor | None = None, **_: object) -> bool:
    return (isinstance(bins, int) and bins < 1) or (weight is not None and weight.numel() != self.numel())


def _reduces_elsewhere(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> bool:
    count = source.shape[dim] if source.dim() else 1
    return reduce not in _REDUCTIONS or index.dim() > 1 or index.numel() != count


def _has_no_segments(
    self: Tensor, reduce: str, *, lengths: Tensor | None = None, offsets: Tensor | None = None, **_: object
) -> bool:
    found = [places for places in (lengths, offsets) if places is not None]
    if lengths is not None and not (lengths.numel() and lengths.dim() <= self.dim()):
        return True
    return any(places.dtype not in (torch.int32, torch.int64) for places in found)


def lu_unpack(LU: Tensor, pivots: Tensor, *flags: bool) -> tuple[Tensor, ...]:
    """Refuse another number of pivots than there are; the CPU's kernel would read what follows in memory."""
    if LU.dim() > 1 and not cpu_errors.has_all_pivots(LU, pivots):
        size = [*LU.shape[:-2], min(LU.shape[-2:])]
        raise RuntimeError(f"lu_unpack expects pivots of size {size}, but got {list(pivots.shape)}")
    return aten.lu_unpack.default(LU, pivots, *flags)  # type: ignore[no-any-return]


def _is_of_other_size(self: Tensor, target: Tensor, *_: object) -> bool:
    return self.dim() == 4 and target.shape != (self.shape[0], *self.shape[2:])


def _is_enlarged(self: Tensor, target: Tensor, *_: object) -> bool:
    return torch.broadcast_shapes(self.shape, target.shape) != self.shape


def _sizes_other_than(dims: int) -> Callable[..., bool]:
    return lambda self, output_size, *_: len(output_size) != dims


def _fourier(op: Any) -> Callable[..., object]:
    """Refuse what the CPU's kernels do not look at, which are not asked: it may end the process."""

    def kernel(self: Tensor, dim: list[int], normalization: int, last: int) -> Tensor:
        for each in dim:
            if not -self.dim() <= each < self.dim():
                ends = f"[{-self.dim()}, {self.dim() - 1}]"
                raise IndexError(f"Dimension out of range (expected to be in range of {ends}, but got {each})")
        if self.dtype in (torch.float16, torch.complex32):
            raise RuntimeError(f"{op.name()} expects float32, float64 or complex numbers of them, but got {self.dtype}")
        if op is aten._fft_c2r.default and (last < 1 or self.shape[dim[-1]] != last // 2 + 1):
            raise RuntimeError(
                f"{op.name()} expects {last // 2 + 1} elements for a result of {last}, but got {self.shape[dim[-1]]}. "
                "torch.fft.irfft gives it so many."
            )
        return op(self, dim, normalization, last)  # type: ignore[no-any-return]

    return kernel


def foreach_norm(self: list[Tensor], ord: float = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Refuse orders and dtypes as the norm of one tensor does."""
    return [aten.linalg_vector_norm.default(each, ord, dtype=dtype) for each in self]


def masked_softmax_backward(grad_output: Tensor, output: Tensor, mask: Tensor, *args: object) -> Tensor:
    """Refuse gradients of another dtype than the result, as the CPU does."""
    if grad_output.dtype is not output.dtype:
        raise RuntimeError(f"expected scores of dtype {grad_output.dtype} but found {output.dtype}")
    return torch.empty_like(grad_output, memory_format=torch.contiguous_format)


def _sampling(op: Any) -> Callable[..., object]:
    """Refuse modes that there are not: the CPU leaves the samples as its memory was."""

    def kernel(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, *args: object) -> Tensor:
        if interpolation_mode not in (0, 1, 2):
            raise RuntimeError(f"{op.name()} expects 0, 1 or 2 as interpolation_mode, but got {interpolation_mode}")
        return op(input, grid, interpolation_mode, padding_mode, *args)  # type: ignore[no-any-return]

    return kernel


def _pools_otherwise(*args: Any) -> bool:
    return len(args) > 4 and args[4] not in (0, 1, 2)


KERNELS: dict[str, Callable[..., object]] = {
    **{op.name(): _fourier(op) for op in (aten._fft_c2c.default, aten._fft_c2r.default, aten._fft_r2c.default)},
    "aten::_foreach_norm.Scalar": foreach_norm,
    "aten::_masked_softmax_backward": masked_softmax_backward,
    **{
        op.name(): _refusing(op, lambda self, *_: 0 in self.shape[-2:])
        for op in (aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
    },
    **{
        op.name(): _refusing(op, _pools_otherwise)
        for op in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
    },
    "aten::bucketize.Tensor": _refusing(aten.bucketize.Tensor, lambda self, bounds, **_: bounds.dim() != 1),
    "aten::convolution": _refusing(aten.convolution.default, _is_no_convolution),
    "aten::diagonal_scatter": _refusing(aten.diagonal_scatter.default, _has_no_slice),
    "aten::lu_unpack": lu_unpack,
    "aten::nll_loss2d_forward": _refusing(aten.nll_loss2d_forward.default, _is_of_other_size),
    "aten::ormqr": _refusing(
        aten.ormqr.default,
        lambda self, tau, other, left=True, *_: (
            tau.dim() == 0 or tau.shape[-1] != min((other.shape[-2 if left else -1], self.shape[-1]))
        ),
    ),
    "aten::pixel_unshuffle": _refusing(
        aten.pixel_unshuffle.default, lambda self, factor: factor > 0 and any(s % factor for s in self.shape[-2:])
    ),
    "aten::roll": _refusing(
        aten.roll.default,
        lambda self, shifts, dims=(): not shifts or (len(dims) != len(shifts) and (dims or len(shifts) > 1)),
    ),
    **{
        op.name(): _refusing(op, lambda *_, side=None, **__: side not in (None, "left", "right"))
        for op in (aten.searchsorted.Tensor, aten.searchsorted.Scalar)
    },
    "aten::segment_reduce": _refusing(aten.segment_reduce.default, _has_no_segments),
    "aten::select_scatter": _refusing(
        aten.select_scatter.default, lambda self, src, dim, index: not -self.shape[dim] <= index < self.shape[dim]
    ),
    "aten::soft_margin_loss": _refusing(aten.soft_margin_loss.default, _is_enlarged),
    **{
        getattr(aten, name).default.name(): _refusing(getattr(aten, name).default, _sizes_other_than(dims))
        for name, dims in _RESIZED.items()
    },
    "aten::grid_sampler_3d": _sampling(aten.grid_sampler_3d.default),
    "aten::fractional_max_pool3d": _refusing(
        aten.fractional_max_pool3d.default, lambda self, kernel, size, samples: samples.dim() != 3
    ),
    **{op.name(): _refusing(op, _is_no_histogram) for op in (aten.histogram.bin_ct, aten.histogram.bins_tensor)},
    **{op.name(): _refusing(op, _reduces_elsewhere) for op in (aten.index_reduce.default, aten.index_reduce_.default)},
    **{op.name(): _refusing(op, _puts_elsewhere) for op in (aten.put.default, aten.put_.default)},
}


def refuse_sizes(operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
    """Raise what the CPU raises if a kernel above refuses a call."""
    kernel = KERNELS.get(operator.name)
    if kernel is None:
        return
    try:
        kernel(*pytree.tree_map(_to_meta, args), **pytree.tree_map(_to_meta, kwargs))
    except NotImplementedError:
        return
    except Exception as error:
        raise (cpu_errors.refusal_of_the_cpu(operator, args, kwargs) or error) from None


def _to_meta(leaf: object) -> object:
    return torch.empty_like(leaf, device="meta") if isinstance(leaf, Tensor) else leaf
