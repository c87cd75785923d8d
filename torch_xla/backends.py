"""How the device computes: the precision of products of 32-bit floats.

| | CPU | CUDA | TPU |
| --- | --- | --- | --- |
| `"highest"`, the default | float32 | float32 | six passes in bfloat16, about float32 |
| `"high"` | float32 | TensorFloat-32: 10 bits of mantissa | three passes in bfloat16, 16 bits |
| `"default"` | float32 | TensorFloat-32 | one pass in bfloat16, 8 bits |

The default is as exact as PyTorch's own float32. Sums are float32 in every case. The setting affects no other dtype.
"""

from typing import Literal

from ._engine import precision as _precision

_PrecisionType = Literal["default", "high", "highest"]


def set_mat_mul_precision(precision: _PrecisionType) -> None:
    """Set the precision of float32 matrix products and convolutions: "default", "high" or "highest".

    The precision applies to programs compiled from now on, including operations that are already recorded. Programs
    compiled with another precision are kept. Raises `ValueError` for any other name.

    >>> import torch_xla.backends
    >>> torch_xla.backends.set_mat_mul_precision("high")
    >>> torch_xla.backends.get_mat_mul_precision()
    'high'
    >>> torch_xla.backends.set_mat_mul_precision("highest")
    """
    _precision.choose(precision)


def get_mat_mul_precision() -> _PrecisionType:
    """Return the precision of float32 matrix products and convolutions; "highest" unless it was set.

    >>> import torch_xla.backends
    >>> torch_xla.backends.get_mat_mul_precision()
    'highest'
    """
    return _precision.in_force  # type: ignore[return-value]
