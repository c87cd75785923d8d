"""Operators whose gradient formula, or whose caller, assumes something of memory that a rule on arrays cannot see."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .kernels import recorder

_det = recorder("aten::_linalg_det")
_slogdet = recorder("aten::_linalg_slogdet")


def _transposed_if_backward_thinks_so(matrix: Tensor) -> Tensor:
    # PyTorch's backward takes the factors for those of the transpose exactly if A is contiguous and real.
    return matrix if matrix.is_contiguous() or matrix.is_complex() else matrix.mT


def linalg_det(A: Tensor) -> Any:
    """The determinant, with the factors that its backward expects."""
    return _det(_transposed_if_backward_thinks_so(A))


def linalg_slogdet(A: Tensor) -> Any:
    """Sign and logarithm of the determinant, with the factors that their backward expects."""
    return _slogdet(_transposed_if_backward_thinks_so(A))


def nested_tensor_from_mask_left_aligned(t: Tensor, mask: Tensor) -> bool:
    """False: `nn.TransformerEncoder` then keeps to padded tensors, since there are no nested ones here."""
    return False


KERNELS: dict[str, Callable[..., Any]] = {
    "_linalg_det": linalg_det,
    "_linalg_slogdet": linalg_slogdet,
    "_nested_tensor_from_mask_left_aligned": nested_tensor_from_mask_left_aligned,
}
