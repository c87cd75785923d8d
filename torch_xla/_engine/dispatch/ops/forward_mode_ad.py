"""Forward-mode AD: PyTorch gives a tangent the memory layout of its primal, and compares storages."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _storage_numel(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def new_zeros_with_same_feature_meta(self: Tensor, other: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """Return zeros of the dtype, size, strides and storage size of `other`, behind the batch dimensions of `self`."""
    batch = list(self.shape[:self_num_batch_dims])
    numel = _storage_numel(other)
    flat = torch.zeros([*batch, numel], dtype=other.dtype, device=other.device)
    strides = [math.prod(batch[dim + 1 :]) * numel for dim in range(len(batch))]
    return flat.as_strided([*batch, *other.shape], [*strides, *other.stride()], other.storage_offset())


def has_same_storage_numel(self: Tensor, other: Tensor) -> bool:
    """Return whether both storages have room for as many elements."""
    return _storage_numel(self) == _storage_numel(other)


def efficient_zero_tensor(size: list[int], *, dtype: Any = None, device: Any = None, **_: object) -> Tensor:
    """Return zeros for a missing tangent; the compiler removes them."""
    return torch.zeros(size, dtype=dtype, device=device)


KERNELS: dict[str, Callable[..., object]] = {
    "_new_zeros_with_same_feature_meta": new_zeros_with_same_feature_meta,
    "_has_same_storage_numel": has_same_storage_numel,
    "_efficientzerotensor": efficient_zero_tensor,
}
