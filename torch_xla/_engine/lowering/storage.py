"""The two operations that are not PyTorch's: reading a storage through a view, and writing one through a view."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .. import dtypes
from ..view.geometry import Geometry
from .registry import lowers
from .views import read_view, reinterpret, reinterpret_back, write_view

READ = "xla::read_view"
WRITE = "xla::write_view"


@lowers(READ)
def read(
    array: jax.Array, base: Geometry, view: Geometry, base_dtype: torch.dtype, dtype: torch.dtype, conj: bool, neg: bool
) -> jax.Array:
    """What a tensor with geometry `view` shows of the storage whose value is `array`."""
    if dtype is base_dtype:
        result = read_view(array, base, view)
    else:
        flat = reinterpret(array.astype(dtypes.to_jax(base_dtype)), base, dtypes.to_jax(dtype))
        result = read_view(flat, Geometry.contiguous(flat.shape), view)
    if conj:
        result = jnp.conj(result)
    return -result if neg else result


def _once(array: jax.Array, value: jax.Array, base: Geometry, view: Geometry) -> tuple[jax.Array, Geometry, Geometry]:
    """Value, base and view of a write in which a stride of 0 repeats no element.

    PyTorch lets a few operators write to expanded tensors, such as `fill_`. Of the values for one element that one
    counts which changes it.
    """
    repeated = [dim for dim, n in enumerate(view.size) if n > 1 and view.stride[dim] == 0]
    if not repeated:
        return value, base, view
    old = read_view(array, base, view)
    for dim in repeated:
        choice = jnp.argmax(value != old, axis=dim, keepdims=True)
        value, old = (jnp.take_along_axis(x, choice, axis=dim) for x in (value, old))
    return value, base, Geometry(value.shape, view.stride, view.offset)


@lowers(WRITE)
def write(
    array: jax.Array,
    value: jax.Array,
    base: Geometry,
    view: Geometry,
    base_dtype: torch.dtype,
    dtype: torch.dtype,
    conj: bool,
    neg: bool,
) -> jax.Array:
    """The storage's value after a tensor with geometry `view` was overwritten with `value`."""
    if neg:
        value = -value
    if conj:
        value = jnp.conj(value)
    if dtype is base_dtype:
        return write_view(array, *_once(array, value.astype(array.dtype), base, view))
    flat = reinterpret(array.astype(dtypes.to_jax(base_dtype)), base, dtypes.to_jax(dtype))
    written = write_view(flat, *_once(flat, value.astype(flat.dtype), Geometry.contiguous(flat.shape), view))
    return reinterpret_back(written, base, np.dtype(dtypes.to_jax(base_dtype)))
