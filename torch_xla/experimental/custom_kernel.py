"""Kernels called with tensors: attention and grouped products by name, and kernels written in Pallas.

On every platform they compute the same numbers in forms that XLA compiles well; all can be differentiated but those
that say otherwise.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch import Tensor

from .._engine import dtypes
from .._engine.client import platform
from .._engine.interop import functions, kernels

DEFAULT_MASK_VALUE = -0.7 * float(torch.finfo(torch.float32).max)


def jax_import_guard() -> None:
    """Nothing: this package runs on JAX, which never takes a device away from it."""


def convert_torch_dtype_to_jax(dtype: torch.dtype) -> Any:
    """The dtype of JAX in which values of `dtype` lie on the device.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import convert_torch_dtype_to_jax
    >>> convert_torch_dtype_to_jax(torch.bfloat16)
    dtype(bfloat16)
    """
    return dtypes.to_jax(dtypes.on_device(dtype))


def to_jax_shape_dtype_struct(tensor: Tensor) -> jax.ShapeDtypeStruct:
    """Size and dtype of a tensor as JAX describes them."""
    return jax.ShapeDtypeStruct(tuple(tensor.shape), convert_torch_dtype_to_jax(tensor.dtype))


def make_kernel_from_pallas(
    kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., Sequence[tuple[Any, torch.dtype]]]
) -> Callable[..., Any]:
    """A function of tensors from `kernel`, a function of JAX that calls Pallas.

    `output_shape_dtype_fn(*args)` gives size and dtype of each result; what the kernel gives is held against it, and a
    kernel with one result gives one tensor. On the CPU, for which Pallas has no compiler, the kernel is interpreted,
    slowly, with a warning. Gradients: use it in a `torch.autograd.Function`, or give the JAX function one by
    `jax.custom_vjp`.

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
    slow = kernels.interpreted(kernel)
    name = getattr(kernel, "__name__", "pallas")

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        on_host = platform.device_type() == "CPU"
        if on_host:
            warnings.warn(f"the Pallas kernel {name} is interpreted on the CPU, which is slow", stacklevel=2)
        promised = [(tuple(size), dtype) for size, dtype in output_shape_dtype_fn(*args)]
        result = functions.call(slow if on_host else kernel, args, kwargs, name)
        results = list(result) if isinstance(result, list | tuple) else [result]
        given = [(tuple(each.shape), each.dtype) for each in results]
        if given != promised:
            raise ValueError(f"the kernel {name} gave {given}, where output_shape_dtype_fn promised {promised}")
        return results[0] if len(results) == 1 else tuple(results)

    return call


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    q_segment_ids: Tensor | None = None,
    kv_segment_ids: Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> Tensor:
    """softmax((q kᵀ + ab) · sm_scale) v, with few rows of scores in memory at once.

    Sizes: q [batch, heads, queries, width], k and v [batch, heads, keys, width], `ab` [batch, heads, queries, keys].
    A query attends to keys of its own segment ([batch, queries] and [batch, keys], both or none), and if `causal` to
    none behind its own position. Note that `sm_scale` is 1 unless given. Where tensors are divided among devices, XLA
    divides this too; `partition_spec` and `mesh` are not needed and decide nothing.

    Raises `ValueError` for sizes that do not fit, or one kind of segments alone.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import flash_attention
    >>> q = k = v = torch.ones(1, 2, 8, 4, device="xla")
    >>> flash_attention(q, k, v, causal=True, sm_scale=0.5).shape
    torch.Size([1, 2, 8, 4])
    """
    if q.dim() != 4 or k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        sizes = f"{list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        raise ValueError(f"flash_attention() takes q, k and v of sizes [batch, heads, length, width]; got {sizes}")
    if (q_segment_ids is None) is not (kv_segment_ids is None):
        raise ValueError("flash_attention() takes segment ids of both queries and keys, or of none")
    if ab is not None:
        ab = ab.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    arguments = (q, k, v, ab, q_segment_ids, kv_segment_ids, bool(causal), float(sm_scale))
    result: Tensor = functions.call(kernels.attention, arguments, {}, "flash_attention")
    return result


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lengths: Tensor,
    page_indices: Tensor,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """The attention of one query of each sequence to keys and values that lie on pages, as a server keeps them.

    Sizes: q [batch, heads, width], pages [key heads, pages, page size, width], `lengths` [batch] (keys of each
    sequence), `page_indices` [batch, pages of a sequence]. `q` is scaled by the caller. `pages_per_compute_block` and
    `megacore_mode` are hints for TPUs and decide nothing here.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import paged_attention
    >>> pages = torch.ones(1, 4, 2, 8, device="xla")
    >>> indices = torch.tensor([[0, 1], [3, 2]], device="xla")
    >>> lengths = torch.tensor([3, 4], device="xla")
    >>> paged_attention(torch.ones(2, 2, 8, device="xla"), pages, pages, lengths, indices, 1).shape
    torch.Size([2, 2, 8])
    """
    cap = None if attn_logits_soft_cap is None else float(attn_logits_soft_cap)
    arguments = (q, k_pages, v_pages, lengths, page_indices, cap)
    result: Tensor = functions.call(kernels.paged_attention, arguments, {}, "paged_attention")
    return result


def gmm(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    tiling: tuple[int, int, int] | None = None,
    group_offset: Tensor | None = None,
    transpose_rhs: bool = False,
) -> Tensor:
    """The rows of `lhs` [m, k], in groups of `group_sizes` rows, times the matrix of their group.

    `rhs` is [groups, k, n], with `transpose_rhs` [groups, n, k]; rows behind the last group give zeros. `tiling` is a
    hint for TPUs and decides nothing here.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import gmm
    >>> lhs, rhs = torch.ones(5, 3, device="xla"), torch.ones(2, 3, 4, device="xla")
    >>> gmm(lhs, rhs, torch.tensor([2, 3], dtype=torch.int32, device="xla")).shape
    torch.Size([5, 4])
    """
    _refuse_offset(group_offset)
    arguments = (lhs, rhs, group_sizes, bool(transpose_rhs))
    result: Tensor = functions.call(kernels.grouped_product, arguments, {}, "gmm")
    return result


def tgmm(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    tiling: tuple[int, int, int] = (512, 512, 512),
    group_offset: Tensor | None = None,
    num_actual_groups: int | None = None,
) -> Tensor:
    """The columns of `lhs` [k, m] times the rows of `rhs` [m, n], group by group: [groups, k, n].

    `num_actual_groups` keeps so many of the groups. `tiling` is a hint for TPUs and decides nothing here.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import tgmm
    >>> lhs, rhs = torch.ones(3, 5, device="xla"), torch.ones(5, 4, device="xla")
    >>> tgmm(lhs, rhs, torch.tensor([2, 3], dtype=torch.int32, device="xla"))[1, 0, 0].item()
    3.0
    """
    _refuse_offset(group_offset)
    result: Tensor = functions.call(kernels.grouped_outer_product, (lhs, rhs, group_sizes), {}, "tgmm")
    return result if num_actual_groups is None else result[:num_actual_groups]


def gmm_backward(
    grad: Tensor, lhs: Tensor, rhs: Tensor, group_sizes: Tensor, tiling: tuple[int, int, int] = (512, 512, 512)
) -> tuple[Tensor, Tensor]:
    """The gradients of `gmm` by `lhs` and `rhs`."""
    return gmm(grad, rhs, group_sizes, transpose_rhs=True), tgmm(lhs.t(), grad, group_sizes)


def repeat_with_fixed_output_size(input: Tensor, repeats: Tensor, total_repeat_length: int) -> Tensor:
    """Each element of the vector `input` as often as `repeats` says, cut or filled with the last to a fixed length.

    >>> import torch
    >>> from torch_xla.experimental.custom_kernel import repeat_with_fixed_output_size
    >>> x = torch.tensor([1, 2, 3], device="xla")
    >>> repeat_with_fixed_output_size(x, torch.tensor([2, 0, 1], device="xla"), 4).tolist()
    [1, 1, 3, 3]
    """
    place = torch.arange(total_repeat_length, device=input.device)
    found = torch.searchsorted(repeats.cumsum(0), place, right=True)
    return input[found.clamp(max=input.shape[0] - 1)]


def _refuse_offset(group_offset: Tensor | None) -> None:
    if group_offset is not None:
        raise NotImplementedError(
            "group_offset is for groups divided by hand among devices; pass the groups of this one"
        )
