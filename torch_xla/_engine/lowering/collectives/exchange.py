"""Collectives: reductions, gathers, exchanges and broadcasts between the processes that run a program.

`groups` lists which processes exchange with which, each process in one group; empty, it is one group of all. XLA
gathers and scatters in groups of one size only; in others it is done by a sum over words, which is exact.

Between CPUs all words have at least 32 bits, because less cannot be sent, and arrays travel as one row. TPUs and GPUs
send each array in its own dtype and shape: a TPU copies an array to make a row of it, and twice the bits take twice the
time. Of 64-bit values a TPU's compiler adds integers alone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..machinery import replica_axis
from ..machinery.registry import lowers

ALL_REDUCE = "xla::all_reduce"
ALL_GATHER = "xla::all_gather"
REDUCE_SCATTER = "xla::reduce_scatter"
ALL_TO_ALL = "xla::all_to_all"
PERMUTE = "xla::collective_permute"
BROADCAST = "xla::collective_broadcast"

Groups = Sequence[Sequence[int]]

# Arrays of fewer bytes travel together, which costs a copy of each and saves a message. One between two processes takes
# a millisecond or more on the CPU, as long as it takes to copy some MiB.
_SMALL = 4 << 20
# Tensors that share a message are copied into it, all at the same time, and users divide a model to save memory. So
# only small tensors share one, such as biases and scales: a separate message for each of them would cost the most.
_SMALL_PARTS = 64 << 10

# Arrays of at least this size are reduced in two exchanges, which on the CPU take less time than XLA's own reduction.
_LARGE = 1 << 20

_REDUCERS: dict[str, Callable[..., jax.Array]] = {
    "mul": jnp.prod,
    "and": jnp.bitwise_and.reduce,
    "or": jnp.bitwise_or.reduce,
    "xor": jnp.bitwise_xor.reduce,
}
_OF_XLA: dict[str, Callable[..., jax.Array]] = {"sum": jax.lax.psum, "min": jax.lax.pmin, "max": jax.lax.pmax}
_ROWS: dict[str, Callable[..., jax.Array]] = {"sum": jnp.sum, "min": jnp.min, "max": jnp.max}
# Of truth values a sum is whether one is true, and a product whether all are.
_OF_BOOL = {"sum": "max", "max": "max", "or": "max", "mul": "min", "min": "min", "and": "min", "xor": "xor"}


def _index_groups(groups: Groups) -> list[list[int]] | None:
    return [list(group) for group in groups] or None


def _are_equal(groups: Groups) -> bool:
    return len({len(group) for group in groups}) < 2


@lowers(ALL_REDUCE)
def all_reduce(arrays: list[jax.Array], reduction: str, groups: Groups) -> list[jax.Array]:
    """Reduce each array over the processes of a group."""
    return _in_rows(arrays, lambda joined: _reduced(joined, reduction, groups))


def _platform() -> str:
    target = replica_axis.target_in_use()
    assert target is not None
    return target.platform


def _in_rows(arrays: Sequence[jax.Array], exchange: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
    """Call `exchange`, which keeps sizes, for each array, small ones of one dtype as one row."""
    results = list(arrays)
    for indices in _bundles(arrays, _SMALL):
        if len(indices) == 1 and _platform() != "cpu":
            results[indices[0]] = exchange(arrays[indices[0]])
            continue
        found = _side_by_side([arrays[index].reshape(1, -1) for index in indices], exchange)
        for index, row in zip(indices, found, strict=True):
            results[index] = row.reshape(arrays[index].shape)
    return results


def _bundles(arrays: Sequence[jax.Array], small: int) -> list[list[int]]:
    """Return which arrays travel together, by index: those of one dtype with fewer bytes than `small`."""
    alone: list[list[int]] = []
    together: dict[np.dtype, list[int]] = {}
    for index, each in enumerate(arrays):
        if each.size * each.dtype.itemsize < small:
            together.setdefault(each.dtype, []).append(index)
        else:
            alone.append([index])
    return [*alone, *together.values()]


def _side_by_side(rows: Sequence[jax.Array], exchange: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
    """Call `exchange` once for matrices of one height, and divide its result, a matrix as wide as they are together."""
    joined = rows[0] if len(rows) == 1 else jnp.concatenate(rows, 1)
    ends = np.cumsum([row.shape[1] for row in rows])
    return jnp.split(exchange(joined), ends[:-1], 1)


def _reduced(array: jax.Array, reduction: str, groups: Groups) -> jax.Array:
    if not array.size:
        return array
    dtype = array.dtype
    platform = _platform()
    if dtype == np.bool_:
        words = array.astype(np.int32 if platform == "cpu" else np.uint8)
        return _reduced(words, _OF_BOOL[reduction], groups).astype(np.bool_)
    if reduction == "sum" and jnp.issubdtype(dtype, np.complexfloating):
        parts = _reduced(jnp.stack([array.real, array.imag]), reduction, groups)
        return jax.lax.complex(parts[0], parts[1])
    if _are_refused(groups) and reduction in _ROWS:
        return _ROWS[reduction](_rows_of_own_group(array, groups, _neutral(reduction, dtype)), axis=0).astype(dtype)
    is_long = platform == "tpu" and dtype.itemsize == 8 and reduction in ("min", "max")
    if is_long and jnp.issubdtype(dtype, np.integer):
        return _extreme_in_halves(array, reduction, groups)
    if is_long or reduction not in _OF_XLA:
        rows = _gathered(array, groups, _largest(groups), fill=_neutral(reduction, dtype))
        return {**_REDUCERS, **_ROWS}[reduction](rows, axis=0).astype(dtype)
    on_cpu = platform == "cpu"
    narrow = dtype.itemsize < 4 and on_cpu
    wide = array.astype(np.float32 if jnp.issubdtype(dtype, np.floating) else np.int32) if narrow else array
    reduce = partial(_OF_XLA[reduction], axis_name=replica_axis.axis(), axis_index_groups=_index_groups(groups))
    if on_cpu and wide.size * wide.dtype.itemsize >= _LARGE and _are_equal(groups):
        reduce = partial(_reduced_in_parts, reduction, groups)
    reduced = replica_axis.in_order(reduce, wide, in_place=True)
    return reduced.astype(dtype)


def _extreme_in_halves(array: jax.Array, reduction: str, groups: Groups) -> jax.Array:
    """Reduce integers of 64 bits: their upper halves, then the lower ones of those whose upper half is the result's."""
    high_dtype = np.dtype(np.int32 if jnp.issubdtype(array.dtype, np.signedinteger) else np.uint32)
    high, low = (array >> 32).astype(high_dtype), array.astype(np.uint32)
    found = _reduced(high, reduction, groups)
    other = np.iinfo(np.uint32).max if reduction == "min" else 0
    lower = _reduced(jnp.where(high == found, low, jnp.uint32(other)), reduction, groups)
    return (found.astype(array.dtype) << 32) | lower.astype(array.dtype)


def _reduced_in_parts(reduction: str, groups: Groups, array: jax.Array) -> jax.Array:
    """Reduce one part of the array on each process of a group, then gather the parts on all of them."""
    size = _largest(groups)
    over: dict[str, Any] = {"axis_name": replica_axis.axis(), "axis_index_groups": _index_groups(groups)}
    flat = jnp.pad(array.reshape(-1), (0, -array.size % size))
    rows = jax.lax.all_to_all(flat.reshape(size, -1), split_axis=0, concat_axis=0, **over)
    part = _ROWS[reduction](rows, axis=0).astype(array.dtype)
    whole = jax.lax.all_gather(part, tiled=True, **over)
    return whole[: array.size].reshape(array.shape)


def _neutral(reduction: str, dtype: np.dtype) -> Any:
    if reduction == "mul":
        return np.ones((), dtype)
    if reduction in ("min", "max") and jnp.issubdtype(dtype, np.inexact):
        return np.array(np.inf if reduction == "min" else -np.inf, dtype)
    if reduction in ("min", "max"):
        limits = np.iinfo(dtype)
        return np.array(limits.max if reduction == "min" else limits.min, dtype)
    return np.array(-1 if reduction == "and" else 0).astype(dtype)


def _are_refused(groups: Groups) -> bool:
    """Return whether JAX reduces over no such groups: on a TPU their sizes must be equal."""
    return _platform() == "tpu" and not _are_equal(groups)


def _rows_of_own_group(array: jax.Array, groups: Groups, fill: object) -> jax.Array:
    """Return the arrays of all processes, one behind the other, with `fill` in those of other groups."""
    together = np.zeros((_count(), _count()), np.bool_)
    for group in groups:
        together[np.ix_(group, group)] = True
    own = jnp.asarray(together)[jax.lax.axis_index(replica_axis.axis())]
    rows = _gathered(array, (), _count())
    return jnp.where(own.reshape(-1, *(1,) * array.ndim), rows, jnp.asarray(fill, array.dtype))


def _largest(groups: Groups) -> int:
    return max(map(len, groups)) if groups else _count()


def _count() -> int:
    target = replica_axis.target_in_use()
    assert target is not None
    return target.replicas


def _position(groups: Groups) -> jax.Array:
    """Return the place of this process in its group."""
    index = jax.lax.axis_index(replica_axis.axis())
    if not groups:
        return index
    table = np.zeros(_count(), np.int32)
    for group in groups:
        table[list(group)] = range(len(group))
    return jnp.asarray(table)[index]


def _words(array: jax.Array) -> jax.Array:
    """Return the bits of an array, as unsigned words that can be added and sent on the platform."""
    is_wide = _platform() == "cpu"
    if array.dtype == np.bool_:
        return array.astype(np.uint32 if is_wide else np.uint8)
    if jnp.issubdtype(array.dtype, np.complexfloating):
        return _words(jnp.stack([array.real, array.imag]))
    bits = jax.lax.bitcast_convert_type(array, np.dtype(f"uint{8 * array.dtype.itemsize}"))
    return bits.astype(np.uint32) if is_wide and bits.dtype.itemsize < 4 else bits


def _from_words(words: jax.Array, dtype: np.dtype) -> jax.Array:
    if words.dtype == dtype:
        return words
    if dtype == np.bool_:
        return words.astype(np.bool_)
    if jnp.issubdtype(dtype, np.complexfloating):
        part = np.dtype(f"float{4 * dtype.itemsize}")
        return jax.lax.complex(_from_words(words[0], part), _from_words(words[1], part))
    bits = np.dtype(f"uint{8 * dtype.itemsize}")
    return jax.lax.bitcast_convert_type(words.astype(bits), dtype)


def _move(send: Callable[[jax.Array], jax.Array], array: jax.Array) -> jax.Array:
    """Call `send(array)`, which changes no bit, in order. It waits as words, and travels as words where it must: for
    words that come and are meant as other numbers XLA copies all of them."""
    is_complex = jnp.issubdtype(array.dtype, np.complexfloating)
    if is_complex or array.dtype == np.bool_ or (array.dtype.itemsize < 4 and _platform() == "cpu"):
        return replica_axis.in_order(send, _words(array))
    return replica_axis.in_order(lambda words: send(_from_words(words, array.dtype)), _words(array))


def _sum_of_words(words: jax.Array, groups: Groups) -> jax.Array:
    if _are_refused(groups):
        return jnp.sum(_rows_of_own_group(words, groups, 0), axis=0).astype(words.dtype)
    add = partial(jax.lax.psum, axis_name=replica_axis.axis(), axis_index_groups=_index_groups(groups))
    if words.dtype == np.uint64 and _platform() == "tpu":
        high, low = (words >> 32).astype(np.uint32), words.astype(np.uint32)
        high, low = replica_axis.in_order(add, high), replica_axis.in_order(add, low)
        return (high.astype(np.uint64) << 32) | low
    return replica_axis.in_order(add, words)


def _gathered(array: jax.Array, groups: Groups, size: int, fill: object = None) -> jax.Array:
    """Return the arrays of a group, one behind the other along a new first dimension of length `size`.

    Groups that are smaller leave rows of `fill`.
    """
    if _are_equal(groups):
        gather = partial(jax.lax.all_gather, axis_name=replica_axis.axis(), axis_index_groups=_index_groups(groups))
        rows = _move(gather, array)
    else:
        words = _words(array)
        empty = jnp.zeros((size, *words.shape), words.dtype)
        rows = _sum_of_words(jax.lax.dynamic_update_index_in_dim(empty, words, _position(groups), 0), groups)
    if jnp.issubdtype(array.dtype, np.complexfloating):
        rows = jnp.swapaxes(rows, 0, 1)
    values = _from_words(rows, array.dtype)
    if fill is None or _are_equal(groups):
        return values
    table = np.zeros(_count(), np.int32)
    for group in groups:
        table[list(group)] = len(group)
    own = jnp.asarray(table)[jax.lax.axis_index(replica_axis.axis())]
    there = jnp.arange(size).reshape(-1, *(1,) * array.ndim) < own
    return jnp.where(there, values, jnp.asarray(fill, array.dtype))


@lowers(ALL_GATHER)
def all_gather(arrays: list[jax.Array], dim: int, size: int, groups: Groups) -> list[jax.Array]:
    """Return each array with those of the other processes of a group, `size` in all, along dimension `dim`."""
    results = list(arrays)
    for indices in _bundles(arrays, _SMALL_PARTS // size):
        if len(indices) == 1 and _platform() != "cpu" and _are_equal(groups):
            results[indices[0]] = _gathered_along(arrays[indices[0]], dim, groups)
            continue
        flat = [arrays[index].reshape(1, -1) for index in indices]
        gathered = _side_by_side(flat, lambda joined: _gathered(joined[0], groups, size))
        for index, rows in zip(indices, gathered, strict=True):
            results[index] = _merged(rows.reshape(size, *arrays[index].shape), dim)
    return results


def _with(array: jax.Array, dim: int, size: int) -> tuple[int, ...]:
    """Return the shape of an array with another size along `dim`."""
    return (*array.shape[:dim], size, *array.shape[dim + 1 :])


def _gathered_along(array: jax.Array, dim: int, groups: Groups) -> jax.Array:
    extra = int(jnp.issubdtype(array.dtype, np.complexfloating))  # complex numbers have their two parts in front
    gather = partial(
        jax.lax.all_gather,
        axis_name=replica_axis.axis(),
        axis=dim + extra,
        axis_index_groups=_index_groups(groups),
        tiled=True,
    )
    return _from_words(_move(gather, array), array.dtype)


def _merged(rows: jax.Array, dim: int) -> jax.Array:
    """Return the rows one behind the other along `dim` of each."""
    moved = jnp.moveaxis(rows, 0, dim)
    shape = moved.shape
    return moved.reshape(*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])


@lowers(REDUCE_SCATTER)
def reduce_scatter(arrays: list[jax.Array], reduction: str, dim: int, size: int, groups: Groups) -> list[jax.Array]:
    """Return this process's part along `dim` of each array, reduced over a group of `size`."""
    if len(arrays) == 1:
        return [_reduced_part(arrays[0], reduction, dim, size, groups)]
    rows = [_parts(array, dim, size).reshape(size, -1) for array in arrays]
    results = list(arrays)
    for indices in _bundles(rows, _SMALL_PARTS):
        reduced = _side_by_side(
            [rows[index] for index in indices], lambda joined: _reduced_part(joined, reduction, 0, size, groups)
        )
        for index, part in zip(indices, reduced, strict=True):
            results[index] = part.reshape(_with(arrays[index], dim, arrays[index].shape[dim] // size))
    return results


def _parts(array: jax.Array, dim: int, size: int) -> jax.Array:
    """Return the parts of an array along `dim`, one behind the other along a new first dimension."""
    shape = array.shape
    return jnp.moveaxis(array.reshape(*shape[:dim], size, shape[dim] // size, *shape[dim + 1 :]), dim, 0)


def _reduced_part(array: jax.Array, reduction: str, dim: int, size: int, groups: Groups) -> jax.Array:
    dtype = array.dtype
    plain = reduction == "sum" and dtype != np.bool_ and not jnp.issubdtype(dtype, np.complexfloating)
    platform = _platform()
    plain &= platform != "tpu" or dtype != np.float64
    if plain and _are_equal(groups) and array.size:
        narrow = dtype.itemsize < 4 and platform == "cpu"
        wide = array.astype(np.float32 if jnp.issubdtype(dtype, np.floating) else np.int32) if narrow else array
        scatter = partial(
            jax.lax.psum_scatter,
            axis_name=replica_axis.axis(),
            scatter_dimension=dim,
            axis_index_groups=_index_groups(groups),
            tiled=True,
        )
        scattered = replica_axis.in_order(scatter, wide, in_place=True)
        return scattered.astype(dtype)
    part = array.shape[dim] // size
    return jax.lax.dynamic_slice_in_dim(_reduced(array, reduction, groups), _position(groups) * part, part, dim)


@lowers(ALL_TO_ALL)
def all_to_all(array: jax.Array, split: int, concat: int, size: int, groups: Groups) -> jax.Array:
    """Send part i along `split` to process i of the group of `size`; concatenate what arrives along `concat`."""
    if not array.size:
        sizes = list(array.shape)
        sizes[split] //= size
        sizes[concat] *= size
        return array.reshape(sizes)
    if _are_equal(groups):
        extra = int(jnp.issubdtype(array.dtype, np.complexfloating))  # complex numbers have their two parts in front
        move = partial(
            jax.lax.all_to_all,
            axis_name=replica_axis.axis(),
            split_axis=split + extra,
            concat_axis=concat + extra,
            axis_index_groups=_index_groups(groups),
            tiled=True,
        )
        return _from_words(_move(move, array), array.dtype)
    rows = _gathered(array, groups, size)
    part = array.shape[split] // size
    own = jax.lax.dynamic_slice_in_dim(rows, _position(groups) * part, part, split + 1)
    return _merged(own, concat)


@lowers(PERMUTE)
def collective_permute(array: jax.Array, pairs: Groups) -> jax.Array:
    """Return the array of the source whose target is this process, or zeros if there is no such source."""
    send = partial(jax.lax.ppermute, axis_name=replica_axis.axis(), perm=[(source, target) for source, target in pairs])
    return _from_words(_move(send, array), array.dtype)


@lowers(BROADCAST)
def broadcast(arrays: list[jax.Array], root: int, groups: Groups, tag: int = 0) -> list[jax.Array]:
    """Return the arrays of the process at place `root` of each group. Processes compare their tags before this runs."""
    is_root = _position(groups) == root
    pass_on = partial(jax.lax.pbroadcast, axis_name=(replica_axis.axis(),), source=root)

    def send(words: jax.Array) -> jax.Array:
        if not words.size:
            return words
        if _platform() == "gpu" and not groups:  # elsewhere XLA lacks it
            return replica_axis.in_order(pass_on, words)
        return _sum_of_words(jnp.where(is_root, words, jnp.zeros_like(words)), groups)

    sent = _in_rows([_words(array) for array in arrays], send)
    return [_from_words(words, array.dtype) for words, array in zip(sent, arrays, strict=True)]
