"""Impose an order on a program: optimization barriers, and values that wait for others."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from .registry import lowers

BARRIER = "xla::optimization_barrier"
AFTER = "xla::after"


@lowers(BARRIER)
def barrier(arrays: list[jax.Array]) -> list[jax.Array]:
    """Return the same values; all of them are computed before any of the results is read."""
    return list(jax.lax.optimization_barrier(arrays))


def once_on_cpu(array: jax.Array) -> jax.Array:
    """Return `array`, in front of several readers: XLA:CPU simplifies across them, and would compute it for each."""
    return jax.lax.platform_dependent(array, cpu=jax.lax.optimization_barrier, default=lambda array: array)


def apart(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return `function` as a separate function of the program, so that XLA:CPU does not fuse it with its readers.

    XLA:CPU fuses long chains too, such as the sum of 49 products of a depthwise kernel. It then recomputes the chain
    for
    each reader, in the order of that reader's elements: a layer norm of such a sum takes ten times as long.
    """

    def inside(*arrays: jax.Array) -> jax.Array:
        with set_xla_metadata(inlineable=None):
            return function(*arrays)

    def called(*arrays: jax.Array) -> jax.Array:
        with set_xla_metadata(inlineable="false"):
            return jax.jit(inside)(*arrays)

    return called


@lowers(AFTER)
def after(arrays: list[jax.Array], earlier: jax.Array) -> list[jax.Array]:
    """Return the same values, but computed after `earlier`, and not known to the compiler to equal `arrays`.

    XLA removes barriers before it orders a program, and may then move the values to the front again. Here the values
    depend on the numbers in `earlier`, in a way that no simplification recognises.
    """
    zero = zero_of(earlier)
    return [_unchanged(array, zero) for array in arrays]


def behind(array: jax.Array, earlier: jax.Array) -> jax.Array:
    """Return `array`, not there before `earlier` is."""
    return _unchanged(array, zero_of(earlier))


def behind_in_place(array: jax.Array, earlier: jax.Array) -> jax.Array:
    """Do as `behind`, but only with the first element, so that XLA writes in place if no other reader exists."""
    if not array.size or jnp.issubdtype(array.dtype, np.complexfloating) or array.dtype == np.bool_:
        return behind(array, earlier)
    # One row is written flat: between the two forms of it XLA copies.
    long = array.reshape([n for n in array.shape if n > 1])
    bits = np.dtype(f"uint{8 * array.dtype.itemsize}")
    first = jax.lax.bitcast_convert_type(jax.lax.slice(long, (0,) * long.ndim, (1,) * long.ndim), bits)
    kept = jax.lax.bitcast_convert_type(behind(first, earlier), array.dtype)
    return jax.lax.dynamic_update_slice(long, kept, (0,) * long.ndim).reshape(array.shape)


def zero_of(array: jax.Array) -> jax.Array:
    """Return a zero of uint32 that depends on `array`."""
    first = array.reshape(-1)[0] if array.size else jnp.zeros((), array.dtype)
    if jnp.issubdtype(array.dtype, np.complexfloating):
        first = first.real
    bits = jax.lax.bitcast_convert_type(first.astype(np.float32), np.uint32)
    return jax.lax.shift_right_logical(jax.lax.shift_right_logical(bits, np.uint32(31)), np.uint32(1))


def _unchanged(array: jax.Array, zero: jax.Array) -> jax.Array:
    if array.dtype == np.bool_:
        return array ^ zero.astype(np.bool_)
    if jnp.issubdtype(array.dtype, np.complexfloating):  # a product of complex numbers makes NaN of an infinite part
        return jax.lax.complex(_unchanged(array.real, zero), _unchanged(array.imag, zero))
    if jnp.issubdtype(array.dtype, np.inexact):
        return array * (zero + np.uint32(1)).astype(array.dtype)  # adding zero would turn -0 into 0
    return array + zero.astype(array.dtype)
