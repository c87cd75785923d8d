"""Conversions to and from floats of eight bits, which XLA rounds otherwise than PyTorch does."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ... import dtypes

_E5M2 = dtypes.to_jax(torch.float8_e5m2)
_E4M3FN = dtypes.to_jax(torch.float8_e4m3fn)
_E8M0FNU = dtypes.to_jax(torch.float8_e8m0fnu)
_UNSIGNED_ZERO = frozenset(map(dtypes.to_jax, (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)))


def is_float8(dtype: np.dtype) -> bool:
    """Return whether the dtype is a float of eight bits."""
    return dtype.itemsize == 1 and jnp.issubdtype(dtype, jnp.floating)


def is_power_of_two(dtype: np.dtype) -> bool:
    """Return whether the numbers of the dtype are powers of two, without a sign."""
    return dtype == _E8M0FNU


def number_to_float8(number: object, dtype: np.dtype) -> np.ndarray:
    """Return a number of Python's or NumPy's, rounded as by PyTorch; `ml_dtypes` makes NaN of 0 as a power of two."""
    return dtypes.to_numpy(torch.tensor(np.asarray(number, np.float64)).to(dtypes.to_torch(dtype)))


def to_float8(array: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return an array in a dtype of eight bits, as PyTorch converts on the CPU."""
    if dtype == _E4M3FN:
        # There is no infinity: it saturates, where XLA gives NaN.
        return lax.convert_element_type(jnp.clip(lax.convert_element_type(array, np.float32), -448, 448), dtype)
    return _power_of_two(array) if dtype == _E8M0FNU else _rounded(array, dtype)


def _rounded(array: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return a float of 8 bits, rounded from float32 as in PyTorch. XLA:CPU has several ways, some of which round
    twice.

    Without a negative zero, its bits mean NaN, and one of these ways makes them of small negative numbers.
    """
    array = lax.convert_element_type(array, np.float32)
    rounded = lax.convert_element_type(array, dtype)
    if dtype not in _UNSIGNED_ZERO and dtype != _E5M2:
        return rounded
    bits = lax.bitcast_convert_type(rounded, np.uint8)
    if dtype == _E5M2:  # which has several NaN: PyTorch makes the last one, with the sign
        nan = jnp.where(jnp.signbit(array), np.uint8(0xFF), np.uint8(0x7F))
        return lax.bitcast_convert_type(jnp.where(array != array, nan, bits), dtype)
    return lax.bitcast_convert_type(jnp.where((bits == 0x80) & (lax.abs(array) < 1), 0, bits).astype(np.uint8), dtype)


def float_of_power(array: jax.Array) -> jax.Array:
    """Return powers of two in float32, where the least is a subnormal number."""
    exponent = lax.bitcast_convert_type(array, np.uint8).astype(np.uint32)
    bits = jnp.where(exponent == 0, 0x400000, jnp.where(exponent == 0xFF, 0x7FC00000, exponent << 23))
    return lax.bitcast_convert_type(bits.astype(np.uint32), np.float32)


def _power_of_two(array: jax.Array) -> jax.Array:
    """Round magnitudes to powers of two from 2^-127, ties up except to the least; infinities and NaN become NaN.

    It looks at bits: XLA takes 2^-127 for 0 in arithmetic with 32-bit floats.
    """
    bits = lax.bitcast_convert_type(lax.convert_element_type(array, np.float32), np.uint32)
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    is_up = (fraction > 0x400000) | ((fraction == 0x400000) & (exponent > 0))
    power = jnp.where(exponent == 0xFF, exponent, exponent + is_up)
    if array.dtype == np.float64:
        # Those that become subnormal in 32 bits: what a conversion makes of them depends on the processor's mode.
        magnitude = lax.abs(array)
        power = jnp.where(magnitude < 2.0**-126, magnitude > 2.0**-127 + 2.0**-150, power)
    return lax.bitcast_convert_type(power.astype(np.uint8), _E8M0FNU)
