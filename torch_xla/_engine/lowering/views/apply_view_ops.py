"""Apply the steps of a view, which `ir/view/` found, to arrays in JAX.

The value of a storage is one array of the logical size of its base, whatever order its elements have in memory.
"""

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.view import (
    Broadcast,
    Gather,
    Geometry,
    Pad,
    Replace,
    Reshape,
    Scatter,
    Slice,
    Transpose,
    Unchanged,
    Update,
    ViewOp,
    Write,
    read,
    starts_at,
    steps_between,
    write,
)
from ..machinery.jax_sharding import spaced

# On the CPU, XLA scatters an element in about 11 ns and selects one in 1 to 2 ns, which scatter does for those written
# alone and a selection for all between them too.
SELECTED_PER_SCATTERED = 8


def read_view(array: jax.Array, base: Geometry, view: Geometry, offset: jax.Array | None = None) -> jax.Array:
    """Return the elements that `view` shows of a storage whose value is `array`, of `base.size`.

    With an `offset`, which the program is given, `view` is moved there (`ir/view/dynamic_start.py`).
    """
    steps = read(base, view)
    for step in steps:
        if isinstance(step, Slice) and offset is not None:
            array = _slice_from(array, _starts(base, steps, offset), step)
        elif isinstance(step, Gather) and offset is not None:
            array = _gather(array, step.view, offset)
        else:
            array = _apply(step, array)
    return array


def read_places(
    array: jax.Array, order: tuple[int, ...], size: Sequence[object], stride: Sequence[object], offset: object
) -> jax.Array:
    """Return the elements of a view of a storage, for sizes that are known only at run time.

    The storage's value is `array`, whose dimensions have the order `order` in memory.
    """
    places = jnp.asarray(offset, np.int64)
    for dim, step in enumerate(stride):
        places = places + lax.broadcasted_iota(np.int64, tuple(size), dim) * jnp.asarray(step, np.int64)
    return jnp.take(lax.transpose(array, order).reshape(-1), places, mode="clip")


def write_view(
    array: jax.Array, value: jax.Array, base: Geometry, view: Geometry, offset: jax.Array | None = None
) -> jax.Array:
    """Return the storage's value after `value`, of `view.size` and the array's dtype, is written through `view`.

    With an `offset`, which the program is given, `view` is moved there.
    """
    how = write(base, view)
    if offset is None:
        return _write(how, array, value)
    match how:
        case Scatter(forward, view, backward):
            flat = _chain(forward, array)
            flat = flat.at[_index(view, flat.size, offset)].set(value, mode="promise_in_bounds")
            return _chain(backward, flat)
        case Update(forward, start, limit, step, Replace(steps), backward):
            starts = _starts(base, steps_between(base, view, unit_steps=True), offset)
            moved = _replace_moved(_chain(forward, array), _chain(steps, value), starts, Slice(start, limit, step))
            return _chain(backward, moved)
        case _:
            raise TypeError(f"{how} depends on the offset in other ways than by the starts of one slice")


def _starts(base: Geometry, steps: tuple[ViewOp, ...], offset: jax.Array) -> tuple[jax.Array | np.ndarray, ...]:
    if base.numel <= np.iinfo(np.int32).max:
        offset = lax.convert_element_type(offset, np.int32)

    def divided(number: jax.Array, unit: int) -> tuple[jax.Array, jax.Array]:
        by = np.array(unit, number.dtype)
        return lax.div(number, by), lax.rem(number, by)

    starts = starts_at(base, steps, offset, divided)
    assert starts is not None
    return tuple(np.array(0, offset.dtype) if start.__class__ is int else start for start in starts)


def _slice_from(array: jax.Array, starts: tuple[jax.Array | np.ndarray, ...], step: Slice) -> jax.Array:
    size = tuple(b - a for a, b in zip(step.start, step.limit, strict=True))
    array = lax.dynamic_slice(array, starts, size, allow_negative_indices=False)
    return array if all(n == 1 for n in step.step) else lax.slice(array, (0,) * len(size), size, step.step)


def _replace_moved(
    array: jax.Array, region: jax.Array, starts: tuple[jax.Array | np.ndarray, ...], step: Slice
) -> jax.Array:
    if any(n != 1 for n in step.step):
        here = _slice_from(array, starts, Slice(step.start, step.limit, (1,) * len(step.step)))
        region = _replace_region(here, region, (0,) * here.ndim, here.shape, step.step)
    return lax.dynamic_update_slice(array, region, starts, allow_negative_indices=False)


def reinterpret(array: jax.Array, base: Geometry, dtype: np.dtype) -> jax.Array:
    """Return the bytes of a storage as a flat array of another dtype, in memory order; zeros fill up the last
    element.
    """
    return _bitcast(_in_memory_order(array, base), np.dtype(dtype))


def reinterpret_back(flat: jax.Array, base: Geometry, dtype: np.dtype) -> jax.Array:
    """Return the value of a storage, an array of `base.size` and `dtype`, from what `reinterpret` gave for it."""
    flat = lax.slice(_bitcast(flat, np.dtype(dtype)), (0,), (base.numel,))
    return read_view(flat, Geometry.contiguous((base.numel,)), base)


def _in_memory_order(array: jax.Array, base: Geometry) -> jax.Array:
    return read_view(array, base, Geometry.contiguous((base.numel,)))


def _apply(step: ViewOp, array: jax.Array) -> jax.Array:
    match step:
        case Reshape(size):
            return lax.reshape(array, size)
        case Transpose(permutation):
            return lax.transpose(array, permutation)
        case Slice(start, limit, stride):
            return lax.slice(array, start, limit, None if all(n == 1 for n in stride) else stride)
        case Pad(size):
            return lax.pad(array, _zero(array), [(0, to - n, 0) for n, to in zip(array.shape, size, strict=True)])
        case Broadcast(size, dims):
            return lax.broadcast_in_dim(array, size, dims)
        case Gather(view):
            return _gather(array, view)


def _zero(array: jax.Array) -> jax.Array:
    return lax.full((), 0, array.dtype)


def _gather(flat: jax.Array, view: Geometry, offset: jax.Array | int = 0) -> jax.Array:
    # A last dimension of neighbours is gathered as windows: half the time of single elements once XLA fuses it.
    windows = view.stride[-1] == 1
    lead = slice(0, -1) if windows else slice(None)
    index = _index(Geometry(view.size[lead], view.stride[lead], view.offset), flat.size, offset)
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=(len(view.size) - 1,) if windows else (),
        collapsed_slice_dims=() if windows else (0,),
        start_index_map=(0,),
    )
    window = (view.size[-1] if windows else 1,)
    return lax.gather(flat, index[..., None], dimensions, window, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)


def _index(view: Geometry, numel: int, offset: jax.Array | int = 0) -> jax.Array:
    """Return the index into the storage of each element that `view` shows, if it is moved by `offset`."""
    dtype = np.int32 if numel <= np.iinfo(np.int32).max else np.int64
    index = lax.full(view.size, lax.convert_element_type(view.offset + offset, dtype))
    for dim, stride in enumerate(view.stride):
        index += lax.broadcasted_iota(dtype, view.size, dim) * np.array(stride, dtype)
    return index


def _write(how: Write, array: jax.Array, value: jax.Array) -> jax.Array:
    match how:
        case Unchanged():
            return array
        case Replace(steps):
            return _chain(steps, value)
        case Scatter(forward, view, backward):
            flat = _chain(forward, array)
            flat = flat.at[_index(view, flat.size)].set(value, mode="promise_in_bounds")
            return _chain(backward, flat)
        case Update(forward, start, limit, step, inner, backward):
            array = _chain(forward, array)
            if isinstance(inner, Replace):
                region = _chain(inner.steps, value)
            else:
                region = _write(inner, lax.slice(array, start, limit, step), value)
            return _chain(backward, _replace_region(array, region, start, limit, step))


def _chain(steps: tuple[ViewOp, ...], array: jax.Array) -> jax.Array:
    for step in steps:
        array = _apply(step, array)
    return array


def _replace_region(
    array: jax.Array, region: jax.Array, start: tuple[int, ...], limit: tuple[int, ...], step: tuple[int, ...]
) -> jax.Array:
    if all(n == 1 for n in step):
        # The one form of a write that XLA does in place, touching the region alone.
        return lax.dynamic_update_slice(array, region, start)
    # Up to the last element that is written: the limit of a slice may lie behind it.
    size = tuple((n - 1) * by + 1 for n, by in zip(region.shape, step, strict=True))
    limit = tuple(at + n for at, n in zip(start, size, strict=True))
    if prod(size) > SELECTED_PER_SCATTERED * region.size:
        where = tuple(slice(at, to, n) for at, to, n in zip(start, limit, step, strict=True))
        return array.at[where].set(region, indices_are_sorted=True, unique_indices=True, mode="promise_in_bounds")
    if size == array.shape:
        return _replace_strided(array, region, step)
    return lax.dynamic_update_slice(array, _replace_strided(lax.slice(array, start, limit), region, step), start)


def _replace_strided(array: jax.Array, region: jax.Array, step: tuple[int, ...]) -> jax.Array:
    """Return `array` with every `step`-th element, from the first to the last, replaced by those of `region`."""
    spread = spaced(region, _zero(region), [(0, 0, n - 1) for n in step])
    mask = None
    for dim, n in enumerate(step):
        if n > 1:
            index = lax.broadcasted_iota(np.int32, array.shape, dim)
            hit = lax.eq(lax.rem(index, np.array(n, np.int32)), np.array(0, np.int32))
            mask = hit if mask is None else lax.bitwise_and(mask, hit)
    return array if mask is None else lax.select(mask, spread, array)


def _bitcast(flat: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return the bytes of a flat array as one of `dtype`, filled up with zeros to whole elements."""
    if flat.dtype == dtype:
        return flat
    # XLA's bitcast knows neither complex numbers nor bools: those go by way of their parts and their bytes.
    if jnp.issubdtype(flat.dtype, np.complexfloating):
        flat = lax.reshape(jnp.stack([lax.real(flat), lax.imag(flat)], axis=-1), (2 * flat.size,))
    elif flat.dtype == np.bool_:
        flat = flat.astype(np.uint8)
    if jnp.issubdtype(dtype, np.complexfloating):
        pairs = _in_rows(_bitcast(flat, np.dtype(f"f{dtype.itemsize // 2}")), 2)
        return lax.complex(pairs[:, 0], pairs[:, 1])
    if dtype == np.bool_:
        return _bitcast(flat, np.dtype(np.uint8)) != 0
    ours, theirs = flat.dtype.itemsize, dtype.itemsize
    if ours < theirs:
        flat = _in_rows(flat, theirs // ours)
    elif 1 < theirs < ours:
        # XLA makes one bitcast of two: of bytes that became wide elements and are divided again, one that it refuses.
        flat = lax.optimization_barrier(flat)
    return lax.reshape(lax.bitcast_convert_type(flat, dtype), (flat.shape[0] * max(ours // theirs, 1),))


def _in_rows(flat: jax.Array, width: int) -> jax.Array:
    rows = -(-flat.size // width)
    return lax.reshape(lax.pad(flat, _zero(flat), [(0, rows * width - flat.size, 0)]), (rows, width))
