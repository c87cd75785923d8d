"""Meta kernels that PyTorch lacks, or whose results have other strides than on the CPU."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..compat.names import torch as private
from ..compat.names.torch import pytree
from ..metrics.user_lines import user_line
from ..quiet_calls import quiet
from . import gradient_meta_kernels, lenient_meta_kernels, stricter_meta_kernels
from .tensor_iterator import stride_of_indexed

aten = torch.ops.aten

_BYTES_AS_CONDITION = (
    "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a future version of "
    "PyTorch. Use a boolean condition instead."
)


def _column_major(like: Tensor, *size: int) -> Tensor:
    """Return column-major matrices, as LAPACK returns them."""
    return like.new_empty((*size[:-2], size[-1], size[-2])).mT


def geqrf(self: Tensor) -> tuple[Tensor, Tensor]:
    """Return reflectors below the diagonal, R above it, and the factors of the reflectors."""
    if self.dim() < 2:
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions.")
    return _column_major(self, *self.shape), self.new_empty((*self.shape[:-2], min(self.shape[-2:])))


def max_unpool2d(self: Tensor, indices: Tensor, output_size: list[int]) -> Tensor:
    """Return a result in the memory format of the input."""
    result: Tensor = aten.max_unpool2d.default(self, indices, output_size)
    if self.dim() == 4 and private.suggest_memory_format(self) is torch.channels_last:
        return result.to(memory_format=torch.channels_last)
    return result


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    grad_input_mask: list[bool],
    *rest: Any,
    **options: Any,
) -> tuple[Tensor | None, ...]:
    """Give gradients the strides of the CPU's kernel, or of its composition where it has no kernel."""
    dropout_p = rest[6]
    if dropout_p > 0 or grad_input_mask[3] or query.shape[-1] != value.shape[-1]:
        of_key = _column_major(key, *key.shape) if key.shape[1] == query.shape[1] else key.new_empty(key.shape)
        gradients = [query.new_empty(query.shape), of_key, value.new_empty(value.shape)]
    else:
        gradients = [torch.empty_like(x.transpose(1, 2).contiguous()).transpose(1, 2) for x in (query, key, value)]
    bias = attn_bias.new_empty(attn_bias.shape) if attn_bias is not None and grad_input_mask[3] else None
    return *gradients, bias


def index(self: Tensor, indices: list[Tensor | None]) -> Tensor:
    """Return `self[indices]` in the strides of the CPU, of dimensions of size 1 too."""
    result: Tensor = aten.index.Tensor(self, indices)
    if all(index is None for index in indices):
        return result
    return result.as_strided(result.shape, stride_of_indexed(self, indices, tuple(result.shape)))


def _of_dtype(op: Any) -> Callable[..., object]:
    """Return a product with an addend in the dtype asked for, which PyTorch's own kernels take for `beta`."""

    def kernel(self: Tensor, left: Tensor, right: Tensor, out_dtype: torch.dtype, **factors: object) -> object:
        return op(self.to(out_dtype), left.to(out_dtype), right.to(out_dtype), **factors)

    return kernel


def _index_add(op: Any) -> Callable[..., object]:
    """Accept a float factor of integers, which the CPU cuts off and PyTorch's own kernel refuses."""

    def kernel(self: Tensor, *args: Any, alpha: object = 1, **kwargs: Any) -> Tensor:
        is_whole = isinstance(alpha, float) and not (self.is_floating_point() or self.is_complex())
        return op(self, *args, alpha=1 if is_whole else alpha, **kwargs)  # type: ignore[no-any-return]

    return kernel


def linear_backward(
    self: Tensor, grad_output: Tensor, weight: Tensor, output_mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Give gradients the sizes of their tensors; a weight of one dimension makes one feature without a dimension."""
    bias_size = weight.shape[:-1]
    gradients = [grad_output.new_empty(size) for size in (self.shape, weight.shape, bias_size)]
    grad_input, grad_weight, grad_bias = (g if m else None for g, m in zip(gradients, output_mask, strict=True))
    return grad_input, grad_weight, grad_bias


def _normalization(op: Any) -> Callable[..., object]:
    """Give statistics of narrow floats the dtype float32 if a parameter has it, else the input's dtype.

    The normalized batch is in one of PyTorch's memory formats, whatever the strides of the input.
    """

    def kernel(input: Tensor, *args: Any) -> tuple[Tensor, ...]:
        output, mean, invstd, *running = op(input, *args)
        if "batch_norm" in op.name():
            output = torch.empty_like(output, memory_format=private.suggest_memory_format(input))
        is_mixed = any(isinstance(x, Tensor) and x.dtype is torch.float32 for x in args)
        dtype = torch.float32 if is_mixed else input.dtype
        return output, mean.to(dtype), invstd.to(dtype), *running

    return kernel


def _power(op: Any) -> Callable[..., object]:
    """Return truth values for a power of truth values: PyTorch's meta kernel makes whole numbers of it."""

    def kernel(self: Any, exponent: object) -> torch.Tensor | list[torch.Tensor]:
        bases = self if isinstance(self, list) else [self]
        exponents = exponent if isinstance(exponent, list) else [exponent] * len(bases)
        pairs = zip(bases, exponents, strict=False)
        if len(bases) != len(exponents) or any(b.dtype is not torch.bool or not isinstance(e, bool) for b, e in pairs):
            return op(self, exponent)
        return [torch.empty_like(base) for base in bases] if isinstance(self, list) else torch.empty_like(self)

    return kernel


def _element_by_element(op: Any) -> Callable[..., object]:
    """Give the result of a function of two numbers the strides of other elementwise results, for every dtype."""

    def kernel(self: Any, other: Any, **options: Any) -> Tensor:
        # Forms that write are called with a number, too.
        function = op if isinstance(self, Tensor) and isinstance(other, Tensor) else op.overloadpacket
        result = function(self, other, **options)
        like = torch.eq(self, other) if isinstance(self, Tensor) else torch.eq(other, self)
        return torch.empty_strided(like.shape, like.stride(), dtype=result.dtype, device="meta")

    return kernel


def _in_dtype_of(place: int, op: Callable[..., Tensor]) -> Callable[..., object]:
    """Give the result the dtype of one operand, as all devices allocate it: PyTorch's own kernel promotes."""

    def kernel(*args: Any, **options: object) -> Tensor:
        return op(*args, **options).to(args[place].dtype)  # type: ignore[no-any-return]

    return kernel


def _promoted(op: Callable[..., Tensor]) -> Callable[..., object]:
    """Give the result the dtype that the first two operands promote to; PyTorch's own kernel takes that of one."""

    def kernel(self: Tensor, other: Tensor, *args: object) -> Tensor:
        return op(self, other, *args).to(torch.result_type(self, other))  # type: ignore[no-any-return]

    return kernel


@quiet()  # complex32 is experimental, and PyTorch says so when the result is made
def block_diag(tensors: list[Tensor]) -> Tensor:
    """Promote as other operators: a tensor without dimensions counts only if its kind is higher."""
    found = [[tensor.dtype for tensor in tensors if bool(tensor.dim()) is has] for has in (True, False)]
    twins = [torch.empty((1,) * has, dtype=functools.reduce(torch.promote_types, of), device="meta")
             for has, of in zip((True, False), found, strict=True) if of]  # fmt: skip
    dtype = torch.result_type(twins[0], twins[-1])
    return aten.block_diag.default(tensors).to(dtype)  # type: ignore[no-any-return]


def addr(self: Tensor, vec1: Tensor, vec2: Tensor, **factors: object) -> Tensor:
    """Promote the addend with its dimensions, which it is given first if it has none."""
    dtype = functools.reduce(torch.promote_types, (self.dtype, vec1.dtype, vec2.dtype))
    return aten.addr.default(self, vec1, vec2, **factors).to(dtype)  # type: ignore[no-any-return]


def ldexp(self: Tensor, other: Tensor) -> Tensor:
    """Promote with the dtype of the power, of a 2 without dimensions that has the dtype of a number that is scaled."""
    is_whole = not (self.is_floating_point() or self.is_complex())
    return self * torch.pow(2.0 if is_whole else self.new_empty(()), other)


def nansum(self: Tensor, dim: list[int] | None = None, *args: object, **options: object) -> Tensor:
    """Take no dimensions as all of them, as other sums do."""
    result: Tensor = aten.nansum.default(self, dim or None, *args, **options)
    return result


def _of_any_number_of_images(op: Any) -> Callable[..., object]:
    """Check sizes where PyTorch takes a number of elements for a truth value, and fails if there are no images."""

    def kernel(self: Tensor, *args: Any) -> Tensor:
        if self.dim() < 3 or self.shape[0]:
            return op(self, *args)  # type: ignore[no-any-return]
        result: Tensor = op(self.new_empty((1, *self.shape[1:])), *args)
        return result.new_empty((0, *result.shape[1:]))

    return kernel


def grouped_mm(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Accept float32 and float16 too, as the CPU and CUDA do. Rows are not padded to 16 bytes, which serves kernels."""
    dtype, operands = self.dtype, [self, mat2]
    if dtype in (torch.float32, torch.float16) and mat2.dtype is dtype and out_dtype in (None, dtype):
        # PyTorch's kernel knows bfloat16 alone: it is shown such tensors, whose strides have as many bytes.
        wider = dtype.itemsize // 2
        for place, operand in enumerate(operands):
            stride = [each if each == 1 else each * wider for each in operand.stride()]
            operands[place] = operand.new_empty_strided(operand.shape, stride, dtype=torch.bfloat16)
        out_dtype = None
    return self.new_empty(aten._grouped_mm.default(*operands, offs, bias, out_dtype).shape)


def scaled_grouped_mm_v2(
    self: Tensor,
    mat2: Tensor,
    scale_a: Sequence[Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """Accept a scale for each row, as the operator of the name without a version, which PyTorch describes."""
    result: Tensor = aten._scaled_grouped_mm(self, mat2, scale_a[0], scale_b[0], offs, bias, None, out_dtype)
    return result


def histc(self: Tensor, bins: int = 100, min: object = 0, max: object = 0) -> Tensor:
    """Accept integers too, as CUDA does."""
    is_whole = self.dtype is not torch.bool and not self.dtype.is_floating_point and not self.dtype.is_complex
    shown = torch.empty_like(self, dtype=torch.float32) if is_whole else self
    return aten.histc.default(shown, bins, min, max).to(self.dtype)


def where(condition: Tensor, self: Tensor, other: Tensor) -> Tensor:
    """Accept a condition of bytes, with the CPU's warning."""
    if condition.dtype is torch.uint8:
        file, number, _ = user_line()
        warnings.warn_explicit(_BYTES_AS_CONDITION, UserWarning, file, number)
        condition = condition.to(torch.bool)
    if self.is_complex() is not other.is_complex():  # PyTorch's own kernel knows no complex dtype of float8
        dtype = torch.result_type(self, other)
        self, other = (torch.empty_like(x, dtype=dtype) for x in (self, other))
    return aten.where.self(condition, self, other)  # type: ignore[no-any-return]


def _of_bytes(op: Callable[..., Any]) -> Callable[..., object]:
    """Accept bytes for the numbers of classes, too, as the CPU does."""

    def kernel(*args: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return op(*[a.long() if isinstance(a, Tensor) and a.dtype is torch.uint8 else a for a in args])

    return kernel


def _masked_fill(op: Any) -> Callable[..., Tensor]:
    """Accept a complex number that is real, as the CPU does, and for truth values any: PyTorch's own kernel does not.

    A check of values, where one is asked for, refuses the others of a tensor.
    """

    def kernel(self: Tensor, mask: Tensor, value: Any) -> Tensor:
        if isinstance(value, complex) and not self.is_complex() and (self.dtype is torch.bool or not value.imag):
            value = bool(value) if self.dtype is torch.bool else value.real
        elif isinstance(value, Tensor) and value.is_complex() and not self.is_complex():
            value = torch.empty_like(value, dtype=self.dtype)
        return op(self, mask, value)  # type: ignore[no-any-return]

    return kernel


def arange(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """Count the steps before they are cut off to integers, except to int64, as the CPU does."""
    if dtype not in _CUT_LATER:
        return aten.arange.start_step(start, end, step, dtype=dtype, **options)  # type: ignore[no-any-return]
    counted: Tensor = aten.arange.start_step(start, end, step, dtype=torch.float64, **options)
    return counted.to(dtype)


def masked_softmax(self: Tensor, mask: Tensor, *args: object) -> Tensor:
    """Return a result in the dtype of the scores."""
    return torch.empty_like(self, memory_format=torch.contiguous_format)


def weight_norm_interface(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Return the lengths of halves in float32, as the CPU does."""
    weight, norms = aten._weight_norm_interface.default(v, g, dim)
    return weight, norms.float() if norms.dtype in (torch.float16, torch.bfloat16) else norms


# PyTorch's own kernels of the shifts that operators of Python call refuse truth values, and these take them.
_SHIFTS = {
    "aten::__lshift__.Tensor": aten.bitwise_left_shift.Tensor,
    "aten::__lshift__.Scalar": aten.bitwise_left_shift.Tensor_Scalar,
    "aten::__ilshift__.Tensor": aten.bitwise_left_shift_.Tensor,
    "aten::__ilshift__.Scalar": aten.bitwise_left_shift_.Tensor_Scalar,
    "aten::__rshift__.Tensor": aten.bitwise_right_shift.Tensor,
    "aten::__rshift__.Scalar": aten.bitwise_right_shift.Tensor_Scalar,
    "aten::__irshift__.Tensor": aten.bitwise_right_shift_.Tensor,
    "aten::__irshift__.Scalar": aten.bitwise_right_shift_.Tensor_Scalar,
}


def _contiguous(op: Any) -> Callable[..., object]:
    return lambda *args, **kwargs: pytree.tree_map(Tensor.contiguous, op(*args, **kwargs))


_ELEMENT_BY_ELEMENT = (
    aten.copysign.Tensor,
    aten.div.Tensor_mode,
    aten.floor_divide.default,
    aten.heaviside.default,
    aten.logaddexp.default,
    aten.logaddexp2.default,
    aten.logical_and.default,
    aten.logical_or.default,
    aten.logical_xor.default,
    aten.special_xlog1py.default,
    aten.xlogy.Tensor,
)

# Results for the backward alone, whose sizes depend on strides on the CPU, which a rule does not see.
LIKE_CUDA = frozenset(("aten::_embedding_bag", "aten::_embedding_bag_forward_only"))

_NORMALIZATIONS = (
    aten.native_layer_norm.default,
    aten.native_group_norm.default,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_no_training.default,
)

_FILLS = (aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.masked_fill_.Scalar, aten.masked_fill_.Tensor)

_POWERS = (
    aten.pow.Tensor_Scalar,
    aten.pow_.Scalar,
    aten._foreach_pow.Scalar,
    aten._foreach_pow.ScalarList,
    aten._foreach_pow_.Scalar,
    aten._foreach_pow_.ScalarList,
)

_NEAREST = (
    aten.upsample_nearest1d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default,
    aten._upsample_nearest_exact1d.default,
    aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact3d.default,
)

_LOSSES_OF_CLASSES = (
    aten.nll_loss_forward.default,
    aten.nll_loss2d_forward.default,
    aten.nll_loss_backward.default,
    aten.nll_loss2d_backward.default,
)

# Which operand has the dtype of the result.
_IN_DTYPE_OF = {
    aten.binary_cross_entropy.default: 0,
    aten.huber_loss.default: 0,
    aten.normal.Tensor_Tensor: 0,
    aten.soft_margin_loss.default: 0,
    aten.mish_backward.default: 1,
    aten.soft_margin_loss_backward.default: 1,
}

_CUT_LATER = (torch.int8, torch.int16, torch.int32, torch.uint8)

KERNELS: dict[str, Callable[..., object]] = {
    **stricter_meta_kernels.KERNELS,
    **gradient_meta_kernels.KERNELS,
    **{op.name(): _normalization(op) for op in _NORMALIZATIONS},
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": attention_backward,
    "aten::_grouped_mm": grouped_mm,
    **{f"{op.name()}.dtype": _of_dtype(op) for op in (aten.addmm.default, aten.baddbmm.default)},
    "aten::_scaled_grouped_mm_v2": scaled_grouped_mm_v2,
    "aten::_add_relu.Scalar": torch.add,
    **{
        op.name(): _in_dtype_of(place, stricter_meta_kernels.KERNELS.get(op.name(), op))  # type: ignore[arg-type]
        for op, place in _IN_DTYPE_OF.items()
    },
    "aten::addr": addr,
    "aten::arange.start_step": arange,
    "aten::block_diag": block_diag,
    **_SHIFTS,
    "aten::_masked_softmax": masked_softmax,
    "aten::_weight_norm_interface": weight_norm_interface,
    "aten::geqrf": geqrf,
    "aten::histc": histc,
    "aten::index.Tensor": index,
    **{op.name(): _index_add(op) for op in (aten.index_add.default, aten.index_add_.default)},
    "aten::ldexp.Tensor": ldexp,
    "aten::linear_backward": linear_backward,
    **{op.name(): _element_by_element(op) for op in _ELEMENT_BY_ELEMENT},
    "aten::all.dims": _contiguous(aten.all.dims),
    "aten::any.dims": _contiguous(aten.any.dims),
    "aten::nansum": nansum,
    "aten::isin.Tensor_Tensor": _contiguous(aten.isin.Tensor_Tensor),
    "aten::log_sigmoid_forward": _contiguous(aten.log_sigmoid_forward.default),
    "aten::pow.Scalar": _contiguous(aten.pow.Scalar),
    "aten::_foreach_pow.ScalarAndTensor": _contiguous(aten._foreach_pow.ScalarAndTensor),
    **{op.name(): _masked_fill(op) for op in _FILLS},
    **{op.name(): _power(op) for op in _POWERS},
    **{op.name(): _of_bytes(stricter_meta_kernels.KERNELS.get(op.name(), op)) for op in _LOSSES_OF_CLASSES},
    **{op.name(): _of_any_number_of_images(op) for op in _NEAREST},
    "aten::normal.Tensor_float": lambda mean, std=1.0, generator=None: torch.empty_like(mean),
    "aten::nan_to_num_": lambda self, *args, **kwargs: self,
    "aten::max_unpool2d": max_unpool2d,
    "aten::threshold_backward": _promoted(aten.threshold_backward.default),
    "aten::where.self": where,
}
KERNELS.update(lenient_meta_kernels.around(KERNELS))
