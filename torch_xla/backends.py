"""How the device computes: the precision of products of 32-bit floats.

| | CPU | CUDA | TPU |
| --- | --- | --- | --- |
| `"highest"`, the default | float32 | float32 | six passes in bfloat16, about float32 |
| `"high"` | float32 | TensorFloat-32: 10 bits of mantissa | three passes in bfloat16, 16 bits |
| `"default"` | float32 | TensorFloat-32 | one pass in bfloat16, 8 bits |

The default is as exact as PyTorch's own float32. Sums are float32 in every case; other dtypes are not concerned.
"""

from typing import Literal

from ._engine import precision as _precision

_PrecisionType = Literal["default", "high", "highest"]


def set_mat_mul_precision(precision: _PrecisionType) -> None:
    """Sets how exactly matrix products and convolutions of float32 are computed: "default", "high" or "highest".

    It counts for what is compiled from now on, recorded operations included; programs of another precision are kept.
    Raises `ValueError` for any other name.

    >>> import torch_xla.backends
    >>> torch_xla.backends.set_mat_mul_precision("high")
    >>> torch_xla.backends.get_mat_mul_precision()
    'high'
    >>> torch_xla.backends.set_mat_mul_precision("highest")
    """
    _precision.choose(precision)


def get_mat_mul_precision() -> _PrecisionType:
    """How exactly matrix products and convolutions of float32 are computed now; "highest" unless somebody set it.

    >>> import torch_xla.backends
    >>> torch_xla.backends.get_mat_mul_precision()
    'highest'
    """
    return _precision.chosen()  # type: ignore[return-value]
