"""Kernels called with tensors: attention and grouped products by name, and kernels written in Pallas.

On every platform they compute the same numbers, in forms that XLA compiles well. All have gradients unless their
documentation says otherwise.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from .._engine import dtypes, interop, metrics, runtime
from .._engine.caching.bounded import put_last
from .._engine.compat import removed_names
from .._engine.compat.names.torch import constant_in_graphs
from .._engine.lowering.fused_kernels import blockwise_attention
from ..core.xla_builder import call_jax
from ..core.xla_model import XLA_LIB as XLA_LIB
from .flash_attention import FlashAttention as FlashAttention
from .flash_attention import fa_custom_backward as fa_custom_backward
from .flash_attention import fa_custom_backward_fake as fa_custom_backward_fake
from .flash_attention import fa_custom_forward as fa_custom_forward
from .flash_attention import fa_custom_forward_fake as fa_custom_forward_fake
from .flash_attention import flash_attention as flash_attention
from .flash_attention import flash_attention_non_xla as flash_attention_non_xla
from .flash_attention import flash_attention_xla as flash_attention_xla
from .flash_attention import generate_ctx_need_grad as generate_ctx_need_grad
from .paged_attention import multi_queries_paged_attention as multi_queries_paged_attention
from .paged_attention import multi_queries_paged_attention_non_xla as multi_queries_paged_attention_non_xla
from .paged_attention import multi_queries_paged_attention_xla as multi_queries_paged_attention_xla
from .paged_attention import paged_attention as paged_attention
from .paged_attention import paged_attention_non_xla as paged_attention_non_xla
from .paged_attention import paged_attention_xla as paged_attention_xla
from .paged_attention import ragged_paged_attention as ragged_paged_attention
from .paged_attention import ragged_paged_attention_non_xla as ragged_paged_attention_non_xla
from .paged_attention import ragged_paged_attention_xla as ragged_paged_attention_xla

__getattr__ = removed_names.asked_of(__name__)

DEFAULT_MASK_VALUE = blockwise_attention.MASK_VALUE

# The kernels that `trace_pallas(use_cache=True)` lowered, by kernel, arguments and their shapes.
trace_pallas_arg_to_payload: dict[Any, Any] = {}
_MOST_PAYLOADS = 256

# The operators compute the same on both devices.
gmm_xla = gmm_non_xla = torch.ops.xla.gmm
quantized_matmul_int8_xla = quantized_matmul_int8_non_xla = torch.ops.xla.quantized_matmul_int8


def jax_import_guard() -> None:
    """Do nothing: this package runs on JAX, which never takes a device away from it."""


def convert_torch_dtype_to_jax(dtype: torch.dtype) -> np.dtype:
    """Return the dtype of JAX that stores values of `dtype` on the device.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import convert_torch_dtype_to_jax
    >>> convert_torch_dtype_to_jax(torch.bfloat16)
    dtype(bfloat16)
    """
    return dtypes.to_jax(dtypes.on_device(dtype))


def to_jax_shape_dtype_struct(tensor: Tensor) -> jax.ShapeDtypeStruct:
    """Return size and dtype of a tensor as a `jax.ShapeDtypeStruct`."""
    return jax.ShapeDtypeStruct(tuple(tensor.shape), convert_torch_dtype_to_jax(tensor.dtype))


def make_kernel_from_pallas(
    kernel: Callable[..., object], output_shape_dtype_fn: Callable[..., Sequence[tuple[Sequence[int], torch.dtype]]]
) -> Callable[..., Any]:
    """Return `kernel`, a function of JAX that calls Pallas, as a function of tensors.

    `output_shape_dtype_fn(*args)` returns size and dtype of each result, and the kernel's results are checked against
    them. For a kernel with one result, the function returns one tensor. On the CPU, for which Pallas has no compiler,
    the kernel is interpreted, slowly, with a warning. For gradients, use the function in a `torch.autograd.Function`,
    or define the gradient of the JAX function by `jax.custom_vjp`.

    >>> import jax, torch, warnings
    >>> from jax.experimental import pallas
    >>> from torch_xla.experimental.custom_kernel import make_kernel_from_pallas
    >>> warnings.simplefilter("ignore")
    >>> def add(x, y, total):
    ...     total[...] = x[...] + y[...]
    >>> def add_arrays(x, y):
    ...     return pallas.pallas_call(add, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)
    >>> add_tensors = make_kernel_from_pallas(add_arrays, lambda x, y: [(x.shape, x.dtype)])
    >>> add_tensors(torch.ones(8, device="xla"), torch.ones(8, device="xla")).sum().item()
    16.0
    """
    slow = interop.InterpretedKernel(kernel)
    name = getattr(kernel, "__name__", "pallas")

    @functools.wraps(kernel)
    def call(*args: object, **kwargs: object) -> Any:
        on_host = _is_interpreted(name)
        promised = [(tuple(size), dtype) for size, dtype in output_shape_dtype_fn(*args)]
        result = call_jax(slow if on_host else kernel, args, kwargs, name)
        results = list(result) if isinstance(result, list | tuple) else [result]
        given = [(tuple(each.shape), each.dtype) for each in results]
        if given != promised:
            raise ValueError(f"the kernel {name} returned {given}; output_shape_dtype_fn gives {promised}")
        return results[0] if len(results) == 1 else tuple(results)

    return call


@constant_in_graphs
def _is_interpreted(name: str) -> bool:
    on_host = runtime.type_in_use() == "CPU"
    if on_host:
        warnings.warn(f"the Pallas kernel {name} is interpreted on the CPU, which is slow", stacklevel=3)
    return on_host


def gmm(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    tiling: tuple[int, int, int] | None = None,
    group_offset: Tensor | None = None,
    transpose_rhs: bool = False,
) -> Tensor:
    """Multiply the rows of `lhs` [m, k], in groups of `group_sizes` rows, by the matrix of their group.

    `rhs` is [groups, k, n], with `transpose_rhs` [groups, n, k]. Rows after the last group become zeros. If groups are
    divided among devices by hand, `rhs` holds the groups from `group_offset` (a tensor of one integer) on, and rows of
    other groups become zeros. `tiling` is a hint for TPUs and has no effect here.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import gmm
    >>> lhs, rhs = torch.ones(5, 3, device="xla"), torch.ones(2, 3, 4, device="xla")
    >>> gmm(lhs, rhs, torch.tensor([2, 3], dtype=torch.int32, device="xla")).shape
    torch.Size([5, 4])
    """
    result: Tensor = torch.ops.xla.gmm(lhs, rhs, group_sizes, tiling, group_offset, bool(transpose_rhs))
    return result


def tgmm(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    tiling: tuple[int, int, int] = (512, 512, 512),
    group_offset: Tensor | None = None,
    num_actual_groups: int | None = None,
) -> Tensor:
    """Multiply the columns of `lhs` [k, m] by the rows of `rhs` [m, n], group by group: [groups, k, n].

    `num_actual_groups` selects this number of groups, from `group_offset` (a tensor of one integer) on. `tiling` is a
    hint for TPUs and has no effect here.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import tgmm
    >>> lhs, rhs = torch.ones(3, 5, device="xla"), torch.ones(5, 4, device="xla")
    >>> tgmm(lhs, rhs, torch.tensor([2, 3], dtype=torch.int32, device="xla"))[1, 0, 0].item()
    3.0
    """
    result: Tensor = torch.ops.xla.tgmm(lhs, rhs, group_sizes, tiling, group_offset, num_actual_groups)
    return result


def gmm_backward(
    grad: Tensor, lhs: Tensor, rhs: Tensor, group_sizes: Tensor, tiling: tuple[int, int, int] = (512, 512, 512)
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `gmm` with respect to `lhs` and `rhs`."""
    return gmm(grad, rhs, group_sizes, transpose_rhs=True), tgmm(lhs.t(), grad, group_sizes)


def repeat_with_fixed_output_size(input: Tensor, repeats: Tensor, total_repeat_length: int) -> Tensor:
    """Repeat each element of the vector `input`, then cut or extend the result to a fixed length with the last element.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import repeat_with_fixed_output_size
    >>> x = torch.tensor([1, 2, 3], device="xla")
    >>> repeat_with_fixed_output_size(x, torch.tensor([2, 0, 1], device="xla"), 4).tolist()
    [1, 1, 3, 3]
    """
    place = torch.arange(total_repeat_length, device=input.device)
    found = torch.searchsorted(repeats.cumsum(0), place, right=True)
    return input[found.clamp(max=input.shape[0] - 1)]


class GMM(torch.autograd.Function):
    """`gmm` as an autograd function: `GMM.apply(lhs, rhs, group_sizes, tiling)`."""

    @staticmethod
    def forward(ctx: FunctionCtx, lhs: Tensor, rhs: Tensor, group_sizes: Tensor, tiling: Any = None) -> Tensor:
        """Return the products."""
        ctx.save_for_backward(lhs, rhs, group_sizes)
        return gmm(lhs, rhs, group_sizes, tiling)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        """Return the gradients with respect to `lhs` and `rhs`."""
        return (*gmm_backward(grads[0], *ctx.saved_tensors), None, None)


def quantized_matmul_int8(
    x: Tensor,
    w: Tensor,
    scalar: Tensor,
    zero_point: Tensor | None = None,
    quant_block_size: Tensor | None = None,
    quantize_activation: bool = False,
    batch_block_size: int | None = None,
    out_block_size: int | None = None,
    in_block_size: int | None = None,
) -> Tensor:
    """Compute x · (w · scalar - zero_point)ᵀ for an int8 matrix [out, in] and a scale of each output, `scalar` [out].

    With `quantize_activation` each row of `x` is rounded to int8 too, and integers are multiplied. The block sizes are
    hints for TPUs. Raises `ValueError` for sizes that do not fit, and for `quant_block_size`: for blocks of inputs with
    separate scales, use `torch.ops.xla.quantized_matmul`.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import quantized_matmul_int8
    >>> w = torch.tensor([[2, 4]], dtype=torch.int8, device="xla")
    >>> quantized_matmul_int8(torch.ones(1, 2, device="xla"), w, torch.tensor([0.5], device="xla"))
    tensor([[3.]], device='xla:0')
    """
    result: Tensor = torch.ops.xla.quantized_matmul_int8(
        x, w, scalar, zero_point, quant_block_size, quantize_activation, batch_block_size, out_block_size, in_block_size
    )
    return result


def safe_empty_like(tensor: Tensor | None) -> Tensor | None:
    """Return a tensor like `tensor` with undefined values; return `None` for `None`."""
    return None if tensor is None else torch.empty_like(tensor)


def trace_pallas(
    kernel: Callable[..., object],
    *args: object,
    static_argnums: Sequence[int] | None = None,
    static_argnames: Sequence[str] | None = None,
    use_cache: bool = False,
    **kwargs: object,
) -> tuple[str | None, list[Tensor]]:
    """Compile `kernel`, a function of JAX that calls Pallas, for a TPU; return its payload and the tensor arguments.

    The payload is the configuration of a `tpu_custom_call`, for `_XLAC._xla_tpu_custom_call`. This needs no TPU. To run
    a kernel, on every platform, use `make_kernel_from_pallas`. With `use_cache` the payload is cached by kernel, sizes,
    dtypes and other arguments (counter `trace_pallas_cache_hit`).
    """
    fixed = set(static_argnums or ())
    tensors = [each for place, each in enumerate(args) if isinstance(each, Tensor) and place not in fixed]
    kinds = tuple((tuple(each.shape), each.dtype) if isinstance(each, Tensor) else each for each in args)
    key = (kernel, kinds, tuple(sorted(kwargs.items()))) if use_cache else None
    if key is not None and key in trace_pallas_arg_to_payload:
        metrics.count("trace_pallas_cache_hit", 1)
        return trace_pallas_arg_to_payload[key], tensors
    described = [to_jax_shape_dtype_struct(each) for each in tensors]

    def of_arrays(*arrays: object) -> object:
        rest = iter(arrays)
        filled = [next(rest) if isinstance(a, Tensor) and place not in fixed else a for place, a in enumerate(args)]
        return kernel(*filled, **kwargs)

    payload = interop.mosaic_configuration(interop.mosaic_call(of_arrays, described))
    if key is not None:
        put_last(trace_pallas_arg_to_payload, key, payload, _MOST_PAYLOADS)
    return payload, tensors


def _extract_backend_config(module: object) -> str | None:
    """Return the configuration of the first `tpu_custom_call` in a module of StableHLO, as JAX's `compiler_ir` gives
    one.
    """
    return interop.mosaic_configuration(module)
