"""The two operations of our own behind all views: read a storage through a view, and write one through a view."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ... import dtypes
from ...compat.names.torch import OpOverload
from ...ir.view.geometry import Geometry
from ..machinery.registry import lowers
from .apply_view_ops import read_view, reinterpret, reinterpret_back, write_view

READ = "xla::read_view"
WRITE = "xla::write_view"

# Numbers that say where, not how much: another place needs no plan of its own. One that is an argument of the program
# makes of a cut that XLA sees through one that it does not, so each stays baked in until it changes itself.
# By operation and name of the argument: whether one beyond the dimension is an error.
PLACES: dict[OpOverload | str, dict[str, bool]] = {
    READ: {"offset": False},
    WRITE: {"offset": False},
    torch.ops.aten.select_backward.default: {"index": True},
    torch.ops.aten.slice_backward.default: {"start": False, "end": False},
}


@lowers(READ)
def read(
    array: jax.Array,
    base: Geometry,
    view: Geometry,
    base_dtype: torch.dtype,
    dtype: torch.dtype,
    conj: bool,
    neg: bool,
    offset: object = None,
) -> jax.Array:
    """Return the value of a tensor with geometry `view` of the storage whose value is `array`.

    With an `offset`, the view begins there. The offset is a Python number or an argument of the program.
    """
    view, moved = _begun(view, offset)
    if dtype is base_dtype:
        result = read_view(array, base, view, moved)
    else:
        flat = _flat(array, base, base_dtype, dtype)
        result = read_view(flat, Geometry.contiguous(flat.shape), view)
        if dtype is torch.complex32:
            result = _unpacked(result)
    if conj:
        result = jnp.conj(result)
    return -result if neg else result


def _begun(view: Geometry, offset: Any) -> tuple[Geometry, jax.Array | None]:
    """Return the view with an offset that is known, or with one that is not."""
    if offset is None or isinstance(offset, jax.Array):
        return view, offset
    return replace(view, offset=offset), None


def _once(array: jax.Array, value: jax.Array, base: Geometry, view: Geometry) -> tuple[jax.Array, Geometry, Geometry]:
    """Return value, base and view of a write in which a stride of 0 repeats no element.

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
    offset: jax.Array | int | None = None,
) -> jax.Array:
    """Return the storage's value after a tensor with geometry `view` was overwritten with `value`; `offset` as in
    `read`.
    """
    view, moved = _begun(view, offset)
    if neg:
        value = -value
    if conj:
        value = jnp.conj(value)
    value = value.astype(array.dtype) if dtype is base_dtype else value
    if moved is not None:
        return write_view(array, value, base, view, moved)
    if dtype is base_dtype:
        return write_view(array, *_once(array, value, base, view))
    # Bytes beside those of truth values that are written may be none: they stay bytes.
    flat = _flat(array, base, base_dtype, torch.uint8 if dtype is torch.bool else dtype)
    value = _packed(value) if dtype is torch.complex32 else value.astype(flat.dtype)
    written = write_view(flat, *_once(flat, value, Geometry.contiguous(flat.shape), view))
    result = reinterpret_back(written, base, _of_its_size(base_dtype))
    return _unpacked(result) if base_dtype is torch.complex32 else result


def _flat(array: jax.Array, base: Geometry, base_dtype: torch.dtype, dtype: torch.dtype) -> jax.Array:
    """Return the bytes of a storage as a flat array of another dtype."""
    array = _packed(array) if base_dtype is torch.complex32 else array.astype(dtypes.to_jax(base_dtype))
    return reinterpret(array, base, _of_its_size(dtype))


def _of_its_size(dtype: torch.dtype) -> np.dtype:
    """Return a dtype of XLA's whose elements take as many bytes as those of `dtype` do in PyTorch."""
    return np.dtype(np.uint32 if dtype is torch.complex32 else dtypes.to_jax(dtype))


def _packed(array: jax.Array) -> jax.Array:
    """Return the bits of `torch.complex32`: the real part in the lower half."""
    real, imag = (
        jax.lax.bitcast_convert_type(part.astype(np.float16), np.uint16).astype(np.uint32)
        for part in (array.real, array.imag)
    )
    return real | imag << 16


def _unpacked(bits: jax.Array) -> jax.Array:
    real, imag = (
        jax.lax.bitcast_convert_type(half.astype(np.uint16), np.float16).astype(np.float32)
        for half in (bits & 0xFFFF, bits >> 16)
    )
    return jax.lax.complex(real, imag)
