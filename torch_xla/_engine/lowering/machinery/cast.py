"""Convert arrays between dtypes as PyTorch does on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .float8 import float_of_power, is_float8, is_power_of_two, to_float8
from .opmath import converted, is_complex, is_float, one_or_zero

# A C compiler makes these from a wider signed integer, so that -1.0 becomes the greatest unsigned number.
_BY_WAY_OF: dict[np.dtype, np.dtype] = {
    np.dtype(np.int8): np.dtype(np.int32),
    np.dtype(np.int16): np.dtype(np.int32),
    np.dtype(np.uint8): np.dtype(np.int32),
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int64),
}
_SIGNED = frozenset(map(np.dtype, (np.int32, np.int64)))


def cast(array: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return `array` in `dtype`, as PyTorch converts on the CPU; what fits no integer, NaN too, becomes the least."""
    if array.dtype == dtype:
        return array
    if array.dtype == np.bool_ and jnp.issubdtype(dtype, np.inexact):
        return one_or_zero(array, dtype)
    if is_complex(array) and not jnp.issubdtype(dtype, jnp.complexfloating):
        # Only bool looks at the imaginary part.
        return array != 0 if dtype == np.bool_ else cast(lax.real(array), dtype)
    if is_power_of_two(array.dtype):
        array = float_of_power(array)
        if dtype == array.dtype:
            return array
    if is_float8(dtype):
        return to_float8(array, dtype)
    if is_float(array):
        if dtype in _BY_WAY_OF:
            array = _truncated(array, _BY_WAY_OF[dtype])
        elif dtype in _SIGNED:
            return _truncated(array, dtype)
        elif dtype == np.uint64:
            negative = lax.convert_element_type(lax.convert_element_type(array, np.int64), dtype)
            return jnp.where(array < 0, negative, lax.convert_element_type(array, dtype))
    return converted(array, dtype)


def _truncated(array: jax.Array, dtype: np.dtype) -> jax.Array:
    # XLA gives the nearest integer, as CUDA does, and 0 for NaN; the CPU's instruction the least for all.
    least = np.iinfo(dtype).min
    fits = array < -float(least) if float(jnp.finfo(array.dtype).max) > -least else jnp.isfinite(array)
    return jnp.where(fits, lax.convert_element_type(array, dtype), np.array(least, dtype))
