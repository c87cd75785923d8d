"""Conversions between dtypes, and operators that copy with a conversion."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ... import dtypes
from ..machinery.opmath import is_complex, is_float, one_or_zero
from ..machinery.registry import lowers

aten = torch.ops.aten

_E4M3FN = dtypes.to_jax(torch.float8_e4m3fn)
_E8M0FNU = dtypes.to_jax(torch.float8_e8m0fnu)
_UNSIGNED_ZERO = frozenset(map(dtypes.to_jax, (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)))
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
    if array.dtype == _E8M0FNU:
        array = _float_of_power(array)
        if dtype == array.dtype:
            return array
    if dtype == _E4M3FN:
        # There is no infinity: it saturates, where XLA gives NaN.
        return lax.convert_element_type(jnp.clip(lax.convert_element_type(array, np.float32), -448, 448), dtype)
    if is_float(array):
        if dtype in _BY_WAY_OF:
            array = _truncated(array, _BY_WAY_OF[dtype])
        elif dtype in _SIGNED:
            return _truncated(array, dtype)
        elif dtype == np.uint64:
            negative = lax.convert_element_type(lax.convert_element_type(array, np.int64), dtype)
            return jnp.where(array < 0, negative, lax.convert_element_type(array, dtype))
    if dtype == _E8M0FNU:
        return _power_of_two(array)
    if dtype.itemsize == 1 and jnp.issubdtype(dtype, jnp.floating):
        return _in_a_byte(array, dtype)
    return lax.convert_element_type(array, dtype)


def _truncated(array: jax.Array, dtype: np.dtype) -> jax.Array:
    # XLA gives the nearest integer, as CUDA does, and 0 for NaN; the CPU's instruction the least for all.
    least = np.iinfo(dtype).min
    fits = array < -float(least) if float(jnp.finfo(array.dtype).max) > -least else jnp.isfinite(array)
    return jnp.where(fits, lax.convert_element_type(array, dtype), np.array(least, dtype))


def _in_a_byte(array: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return a float of 8 bits, rounded from float32 as in PyTorch. XLA:CPU has several ways, some of which round
    twice.

    Without a negative zero, its bits mean NaN, and one of these ways makes them of small negative numbers.
    """
    array = lax.convert_element_type(array, np.float32)
    rounded = lax.convert_element_type(array, dtype)
    if dtype not in _UNSIGNED_ZERO:
        return rounded
    bits = lax.bitcast_convert_type(rounded, np.uint8)
    return lax.bitcast_convert_type(jnp.where((bits == 0x80) & (lax.abs(array) < 1), 0, bits).astype(np.uint8), dtype)


def _float_of_power(array: jax.Array) -> jax.Array:
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


@lowers(aten._to_copy.default)
def to_copy(self: jax.Array, *, dtype: torch.dtype | None = None) -> jax.Array:
    return self if dtype is None else cast(self, dtypes.to_jax(dtype))


@lowers(aten.clone.default, aten.lift.default, aten.lift_fresh_copy.default)
def clone(self: jax.Array) -> jax.Array:
    return self


@lowers(aten.copy.default)
def copy(self: jax.Array, src: jax.Array) -> jax.Array:
    return jnp.broadcast_to(cast(src, self.dtype), self.shape)
