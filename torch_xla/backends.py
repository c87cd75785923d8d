"""How the device computes: the precision of products of 32-bit floats.

| | CPU | CUDA | TPU |
| --- | --- | --- | --- |
| nothing is set | float32 | float32 | one pass in bfloat16, 8 bits |
| `"highest"` | float32 | float32 | six passes in bfloat16, about float32 |
| `"high"` | float32 | TensorFloat-32: 10 bits of mantissa | three passes in bfloat16, 16 bits |
| `"default"` | float32 | TensorFloat-32 | one pass in bfloat16, 8 bits |

`torch.set_float32_matmul_precision()` sets it too: "highest" and "high" are the same here, "medium" is `"default"`.
`set_mat_mul_precision()` counts more where both were called. Sums are float32 in every case. The setting affects no
other dtype, and neither JAX functions nor kernels: they have JAX's precision (`jax.default_matmul_precision`).
"""

from typing import Literal

from ._engine import precision as _precision
from ._engine import runtime as _runtime

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
    """Return the precision of float32 matrix products and convolutions: as set, or that of the platform.

    If nothing is set, it is "default" on a TPU and "highest" elsewhere.

    >>> import torch_xla.backends
    >>> torch_xla.backends.get_mat_mul_precision()
    'highest'
    """
    return _precision.on_platform(_runtime.selected_device_type().lower())  # type: ignore[return-value]
