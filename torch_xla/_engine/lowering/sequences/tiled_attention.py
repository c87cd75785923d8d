"""Attention in tiles of scores, forward and backward: memory grows with the length of a sequence, not with its square.

A subclass of `Tiles` defines the scores of a tile and their mask. Queries have the dimensions (batch, head of the keys,
group, row, feature): several query heads may share one head of keys. Scores of a tile have (batch, head of the query,
row, column).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..linear_algebra.matmul import contract
from ..machinery.opmath import widened
from .attention import BATCH_AND_HEAD

# The usual side of a tile.
SIDE = 128

_ROWS = ((2, 3), (2, 3))


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the scores are cut into tiles of `rows` x `columns`, and which of them are computed.

    `order[row]` lists the columns of tiles for a row of tiles, and `counts[row]` says how many of them are needed: the
    first ones.
    """

    rows: int
    columns: int
    order: jax.Array
    counts: jax.Array


class Tiles:
    """The scores of one call. Rows and columns behind the last ones are padding, which `masked` must leave out."""

    def __init__(self, query: jax.Array, key: jax.Array, value: jax.Array, scale: object, tiling: Tiling) -> None:
        """Take query (batch, head, row, feature), and key and value with the same batch and fewer or equal heads."""
        self.tiling = tiling
        self.scale = scale
        self.dtype = jnp.result_type(widened(query).dtype, np.float32)
        self.heads = query.shape[:2]
        self.queries, self.keys = query.shape[2], key.shape[2]
        self.query = self.padded_rows(grouped(query, key), 3)
        self.key, self.value = (padded(each, 2, tiling.columns) for each in (key, value))

    def changed(self, row: object, column: object, plain: jax.Array) -> jax.Array:
        """Return what the scores of a tile become before the mask."""
        return plain

    def masked(self, row: object, column: object) -> jax.Array:
        """Return which scores of a tile count."""
        raise NotImplementedError

    def differentiated(self) -> Sequence[jax.Array]:
        """Return the arrays, apart from query, key and value, that have a gradient."""
        return ()

    def changed_gradient(
        self, row: object, column: object, plain: jax.Array, grad: jax.Array
    ) -> tuple[jax.Array, Sequence[jax.Array]]:
        """Return the gradients of the scores before `changed`, and of the arrays that `differentiated` names."""
        return grad, ()

    def padded_rows(self, array: jax.Array, axis: int) -> jax.Array:
        return padded(array, axis, self.tiling.rows)

    def rows_of(self, array: jax.Array, row: Any, axis: int = 3) -> jax.Array:
        return lax.dynamic_slice_in_dim(array, row * self.tiling.rows, self.tiling.rows, axis)

    def columns_of(self, array: jax.Array, column: Any) -> jax.Array:
        return lax.dynamic_slice_in_dim(array, column * self.tiling.columns, self.tiling.columns, 2)

    def row_numbers(self, row: jax.Array) -> jax.Array:
        return lax.iota(np.int32, self.tiling.rows) + row * self.tiling.rows

    def column_numbers(self, column: Any) -> jax.Array:
        return lax.iota(np.int32, self.tiling.columns) + column * self.tiling.columns

    def plain(self, row: object, column: object) -> jax.Array:
        """Return scaled products of queries and keys."""
        products = contract(
            self.rows_of(self.query, row), self.columns_of(self.key, column), ((4,), (3,)), BATCH_AND_HEAD
        )
        scores = products.reshape(*self.heads, self.tiling.rows, self.tiling.columns)
        return scores * jnp.asarray(self.scale, scores.dtype)

    def scores(self, row: object, column: object, plain: jax.Array) -> jax.Array:
        """Return the scores of a tile after `changed`, minus infinity where they do not count."""
        return jnp.where(self.masked(row, column), self.changed(row, column, plain).astype(self.dtype), -jnp.inf)


def forward(tiles: Tiles) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the output, and for each row the logarithm of the sum of its exponentials and its largest score.

    A row without scores has zeros as output, and minus infinity twice.
    """
    tiling, dtype = tiles.tiling, tiles.dtype
    shape = (*tiles.heads, tiling.rows)

    def row_of_tiles(row: Any) -> tuple[jax.Array, jax.Array]:
        def step(
            number: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            largest, total, output = state
            column = tiling.order[row, number]
            scores = tiles.scores(row, column, tiles.plain(row, column))
            larger = jnp.maximum(largest, jnp.max(scores, -1))
            base = finite_or_zero(larger)
            powers = jnp.exp(scores - base[..., None])
            kept = jnp.exp(largest - base)
            weights = grouped(powers.astype(tiles.query.dtype), tiles.key)
            product = contract(weights, tiles.columns_of(tiles.value, column), ((4,), (2,)), BATCH_AND_HEAD)
            output = output * kept[..., None] + product.reshape(output.shape).astype(dtype)
            return larger, total * kept + jnp.sum(powers, -1), output

        features = tiles.value.shape[-1]
        start = jnp.full(shape, -jnp.inf, dtype), jnp.zeros(shape, dtype), jnp.zeros((*shape, features), dtype)
        return lax.fori_loop(0, tiling.counts[row], step, start)

    rows = lax.iota(np.int32, tiling.order.shape[0])
    largest, total, output = (_joined(each, tiles.queries) for each in lax.map(row_of_tiles, rows))
    has_none = total == 0
    output = output / jnp.where(has_none, jnp.ones((), dtype), total)[..., None]
    logarithm = jnp.where(has_none, -jnp.inf, largest + jnp.log(total))
    return output.astype(tiles.query.dtype), logarithm, largest


def backward(
    tiles: Tiles,
    output: jax.Array,
    logarithm: jax.Array,
    grad_output: jax.Array,
    grad_logarithm: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, Sequence[jax.Array]]:
    """Return the gradients of query, key, value, and of the arrays that `tiles.differentiated` names.

    Results are in the dtype of the computation: float32 for narrower operands.
    """
    tiling, dtype = tiles.tiling, tiles.dtype
    mean = jnp.sum(output.astype(dtype) * grad_output.astype(dtype), -1)
    if grad_logarithm is not None:
        mean = mean - grad_logarithm.astype(dtype)
    logarithm, mean = (tiles.padded_rows(each, 2) for each in (logarithm.astype(dtype), mean))
    grads = tiles.padded_rows(grouped(grad_output, tiles.key), 3)

    def row_of_tiles(state: Any, row: object) -> Any:
        def step(
            number: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, ...]]
        ) -> tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, ...]]:
            return _add_tile(tiles, (logarithm, mean, grads), row, tiling.order[row, number], state)

        start = (jnp.zeros((*tiles.query.shape[:3], tiling.rows, tiles.query.shape[-1]), dtype), *state)
        grad_query, *state = lax.fori_loop(0, tiling.counts[row], step, start)
        return tuple(state), grad_query

    others = (jnp.zeros(each.shape, jnp.result_type(each.dtype, np.float32)) for each in tiles.differentiated())
    start = jnp.zeros(tiles.key.shape, dtype), jnp.zeros(tiles.value.shape, dtype), tuple(others)
    rows = lax.iota(np.int32, tiling.order.shape[0])
    (grad_key, grad_value, grad_others), grad_query = lax.scan(row_of_tiles, start, rows)
    grad_query = grad_query.reshape(grad_query.shape[0], *tiles.heads, *grad_query.shape[4:])
    grad_key, grad_value = (lax.slice_in_dim(each, 0, tiles.keys, axis=2) for each in (grad_key, grad_value))
    return _joined(grad_query, tiles.queries), grad_key, grad_value, grad_others


def _add_tile(
    tiles: Tiles,
    of_rows: tuple[jax.Array, ...],
    row: Any,
    column: Any,
    state: tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, ...]],
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, ...]]:
    """Add what one tile gives to the gradients: of query for these rows, of key, of value, and of other arrays."""
    grad_query, grad_key, grad_value, grad_others = state
    logarithm, mean, grads = of_rows
    dtype, narrow = tiles.dtype, tiles.query.dtype
    plain = tiles.plain(row, column)
    base = finite_or_zero(tiles.rows_of(logarithm, row, 2))
    powers = jnp.exp(tiles.scores(row, column, plain) - base[..., None])
    grad_rows = tiles.rows_of(grads, row)
    weights = grouped(powers.astype(narrow), tiles.key)
    grad_value = _added(grad_value, column, contract(weights, grad_rows, _ROWS, BATCH_AND_HEAD), tiles)
    products = contract(grad_rows, tiles.columns_of(tiles.value, column), ((4,), (3,)), BATCH_AND_HEAD)
    grad_powers = products.reshape(powers.shape).astype(dtype) - tiles.rows_of(mean, row, 2)[..., None]
    grad_scores, found = tiles.changed_gradient(row, column, plain, powers * grad_powers)
    scaled = grad_scores.astype(dtype) * jnp.asarray(tiles.scale, dtype)
    scaled = jnp.where(tiles.masked(row, column), scaled, jnp.zeros((), dtype))
    scaled = grouped(scaled.astype(narrow), tiles.key)
    product = contract(scaled, tiles.columns_of(tiles.key, column), ((4,), (2,)), BATCH_AND_HEAD)
    product_of_keys = contract(scaled, tiles.rows_of(tiles.query, row), _ROWS, BATCH_AND_HEAD)
    return (
        grad_query + product.astype(dtype),
        _added(grad_key, column, product_of_keys, tiles),
        grad_value,
        tuple(one + other.astype(one.dtype) for one, other in zip(grad_others, found, strict=True)),
    )


def grouped(query: jax.Array, key: jax.Array) -> jax.Array:
    """Give the query heads of one head of keys a separate dimension, in queries or arrays with the same rows."""
    groups = query.shape[1] // key.shape[1]
    return query.reshape(query.shape[0], key.shape[1], groups, *query.shape[2:])


def padded(array: jax.Array, axis: int, side: int) -> jax.Array:
    """Append zeros along `axis` up to a multiple of `side`."""
    missing = -array.shape[axis] % side
    widths = [(0, missing if each == axis else 0, 0) for each in range(array.ndim)]
    return lax.pad(array, jnp.zeros((), array.dtype), widths) if missing else array


def finite_or_zero(largest: jax.Array) -> jax.Array:
    """Replace minus infinity, from which nothing may be subtracted, by zero."""
    return jnp.where(largest == -jnp.inf, jnp.zeros((), largest.dtype), largest)


def _joined(array: jax.Array, rows: int) -> jax.Array:
    """Return (tile, batch, head, row, ...) as (batch, head, row of all tiles, ...), without the rows of padding."""
    array = jnp.moveaxis(array, 0, 2)
    joined = array.reshape(*array.shape[:2], array.shape[2] * array.shape[3], *array.shape[4:])
    return lax.slice_in_dim(joined, 0, rows, axis=2)


def _added(total: jax.Array, column: jax.Array, part: jax.Array, tiles: Tiles) -> jax.Array:
    start = column * tiles.tiling.columns
    before = lax.dynamic_slice_in_dim(total, start, tiles.tiling.columns, 2)
    return lax.dynamic_update_slice_in_dim(total, before + part.astype(total.dtype), start, 2)
