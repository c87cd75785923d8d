"""Flex attention and its gradient: attention whose scores and mask are functions of the user's.

PyTorch gives both functions as graphs of scalars: `score_mod(score, batch, head, row, column, *captured)` and
`mask_mod(batch, head, row, column, *captured)`. Here they are evaluated for one tile of scores at a time, so memory
grows with the length of the sequence and not with its square. Tiles that the block mask leaves out for all batches and
heads are not computed.

Both operators count logarithms to the base 2, as PyTorch's kernels do. Shapes: query (Bq, Hq, Sq, D), key (Bkv, Hkv,
Skv, D), value (Bkv, Hkv, Skv, Dv). Hq is a multiple of Hkv, and Bkv may be 1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torch.fx import GraphModule

from ...private import torch as private
from .. import fx
from ..linear_algebra.matmul import contract
from ..opmath import widened
from ..registry import lowers_named
from .attention import BATCH_AND_HEAD

# The largest side of a tile, except where the blocks of the mask cannot be cut into such tiles.
TILE = 128
# Blocks up to this length are tiles as they are.
MOST_OF_A_TILE = 1024

# Where the parts of PyTorch's tuple for a block mask are: numbers and indices of blocks that are masked in part, those
# that are not masked at all, and from behind the two lengths of a block and the mask's function.
PARTIAL, FULL = (2, 3), (4, 5)
LENGTHS, MASK = (-3, -2), -1

_Arrays = Sequence[jax.Array]


@dataclass(frozen=True, slots=True)
class _Tiling:
    """How the scores are cut: tiles of `rows` x `columns`, and which of them each row of tiles needs.

    `states` says for each tile, by batch and head of the mask, whether it is left out (0), masked by the function (1)
    or taken whole (2). `order` lists for each row of tiles its columns of tiles, needed ones first; `counts` says how
    many are needed.
    """

    rows: int
    columns: int
    states: jax.Array
    order: jax.Array
    counts: jax.Array


def _tiling(mask: Sequence[Any], queries: int, keys: int) -> _Tiling:
    """Cut the scores along the blocks of a block mask."""
    lengths = [int(mask[place]) for place in LENGTHS]
    sides = [_side(length, size) for length, size in zip(lengths, (queries, keys), strict=True)]
    counts = [-(-size // side) for size, side in zip((queries, keys), sides, strict=True)]
    blocks_of_keys = -(-keys // lengths[1])
    states = _listed(mask[PARTIAL[0]], mask[PARTIAL[1]], blocks_of_keys).astype(np.int32)
    if mask[FULL[0]] is not None:
        states = jnp.where(_listed(mask[FULL[0]], mask[FULL[1]], blocks_of_keys), np.int32(2), states)
    rows, columns = (
        np.minimum(np.arange(count) * side // length, most - 1)
        for count, side, length, most in zip(counts, sides, lengths, states.shape[2:], strict=True)
    )
    states = states[:, :, rows][:, :, :, columns]
    needed = jnp.any(states > 0, (0, 1))
    order = jnp.argsort(~needed, axis=-1, stable=True).astype(np.int32)
    return _Tiling(sides[0], sides[1], states, order, jnp.sum(needed, -1, dtype=np.int32))


def _side(block: int, size: int) -> int:
    """The side of a tile that never crosses the border between two blocks."""
    if block >= size:
        return min(size, TILE)
    return TILE if block > MOST_OF_A_TILE and block % TILE == 0 else block


def _listed(numbers: jax.Array, indices: jax.Array, columns: int) -> jax.Array:
    """Which blocks the first `numbers` of the `indices` name: booleans by (batch, head, row, column)."""
    is_listed = lax.broadcasted_iota(np.int32, indices.shape, 3) < numbers[..., None]
    places = jnp.where(is_listed, indices, columns)  # out of range, and so dropped
    batch, head, row = (lax.broadcasted_iota(np.int32, indices.shape, axis) for axis in range(3))
    named = jnp.zeros((*indices.shape[:3], columns), np.bool_)
    return named.at[batch, head, row, places].set(True, mode="drop")


@dataclass(frozen=True, slots=True)
class _Scores:
    """The scores of all tiles, forward and backward. `query` has (batch, head of keys, group, row, feature)."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    scale: Any
    queries: int
    keys: int
    tiling: _Tiling
    mask_graph: GraphModule
    mask_captured: _Arrays

    @property
    def heads(self) -> tuple[int, int]:
        return self.query.shape[0], self.query.shape[1] * self.query.shape[2]

    def rows_of(self, array: jax.Array, row: Any, axis: int = 3) -> jax.Array:
        return lax.dynamic_slice_in_dim(array, row * self.tiling.rows, self.tiling.rows, axis)

    def columns_of(self, array: jax.Array, column: Any) -> jax.Array:
        return lax.dynamic_slice_in_dim(array, column * self.tiling.columns, self.tiling.columns, 2)

    def of_tile(self, row: Any, column: Any) -> jax.Array:
        """Scores before any function, by (batch, head, row, column)."""
        products = contract(
            self.rows_of(self.query, row), self.columns_of(self.key, column), ((4,), (3,)), BATCH_AND_HEAD
        )
        scores = products.reshape(*self.heads, self.tiling.rows, self.tiling.columns)
        return scores * jnp.asarray(self.scale, scores.dtype)

    def apply(self, graph: GraphModule, captured: _Arrays, row: Any, column: Any, *tiles: jax.Array) -> jax.Array:
        """Evaluate a graph of scalars that gives one scalar for each element of a tile."""
        return self.apply_function(
            lambda *scalars: fx.interpret(graph, [*scalars, *captured], ()), 0, row, column, *tiles
        )

    def apply_function(
        self, function: Callable[..., Any], out_axes: Any, row: Any, column: Any, *tiles: jax.Array
    ) -> Any:
        """Evaluate a function of scalars for each element of a tile.

        The first of `tiles` is the function's first argument, the others come behind the four indices.
        """
        batch, head = (lax.iota(np.int32, size) for size in self.heads)
        # Beside the last row and column there are none whose elements the function could look at.
        rows = jnp.minimum(lax.iota(np.int32, self.tiling.rows) + row * self.tiling.rows, self.queries - 1)
        columns = jnp.minimum(lax.iota(np.int32, self.tiling.columns) + column * self.tiling.columns, self.keys - 1)
        first, others = tiles[:1], tiles[1:]
        for index in reversed(range(4)):
            places = [0 if index == each else None for each in range(4)]
            function = jax.vmap(function, (*[0] * len(first), *places, *[0] * len(others)), out_axes)
        return function(*first, batch, head, rows, columns, *others)

    def allowed(self, row: Any, column: Any) -> jax.Array:
        """Which elements of a tile the mask lets pass."""
        states = self.tiling.states[:, :, row, column][:, :, None, None]
        passed = self.apply(self.mask_graph, self.mask_captured, row, column)
        rows = lax.iota(np.int32, self.tiling.rows) + row * self.tiling.rows < self.queries
        columns = lax.iota(np.int32, self.tiling.columns) + column * self.tiling.columns < self.keys
        inside = rows[:, None] & columns[None, :]
        return inside & ((states == 2) | ((states == 1) & passed.astype(np.bool_)))


def _grouped(query: jax.Array, key: jax.Array) -> jax.Array:
    """Queries, or what has their rows, with the heads that share one head of keys in a dimension of their own."""
    groups = query.shape[1] // key.shape[1]
    return query.reshape(query.shape[0], key.shape[1], groups, *query.shape[2:])


def _padded(array: jax.Array, axis: int, side: int) -> jax.Array:
    missing = -array.shape[axis] % side
    widths = [(0, missing if each == axis else 0, 0) for each in range(array.ndim)]
    return lax.pad(array, jnp.zeros((), array.dtype), widths) if missing else array


def _scores(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: Sequence[Any], scale: Any, captured: _Arrays
) -> _Scores:
    tiling = _tiling(mask, query.shape[2], key.shape[2])
    batch = query.shape[0]
    if key.shape[0] not in (1, batch):
        raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={batch} and Bkv={key.shape[0]}")
    key, value = (jnp.broadcast_to(each, (batch, *each.shape[1:])) for each in (key, value))
    rows = _padded(_grouped(query, key), 3, tiling.rows)
    keys, values = (_padded(each, 2, tiling.columns) for each in (key, value))
    return _Scores(rows, keys, values, scale, query.shape[2], key.shape[2], tiling, mask[MASK], captured)


def _refuse_draws(key: Any) -> None:
    if key is not None:
        raise NotImplementedError(
            "flex_attention(): score_mod or mask_mod draws random numbers, which has no meaning for a function that is "
            "evaluated once more for the gradient. Draw in front of the call and index what was drawn."
        )


def flex_attention(
    query: jax.Array,
    key_: jax.Array,
    value: jax.Array,
    score_graph: GraphModule,
    mask: Sequence[Any],
    scale: Any,
    kernel_options: Any = None,
    score_captured: _Arrays = (),
    mask_captured: _Arrays = (),
    key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the output, and for each row the logarithm of the sum of its exponentials and its largest score."""
    _refuse_draws(key)
    scores = _scores(query, key_, value, mask, scale, mask_captured)
    tiling = scores.tiling
    dtype = jnp.result_type(widened(query).dtype, np.float32)
    shape = (*scores.heads, tiling.rows)

    def row_of_tiles(row: Any) -> Any:
        def step(number: Any, state: Any) -> Any:
            largest, total, output = state
            column = tiling.order[row, number]
            plain = scores.of_tile(row, column)
            changed = scores.apply(score_graph, score_captured, row, column, plain).astype(dtype)
            changed = jnp.where(scores.allowed(row, column), changed, -jnp.inf)
            larger = jnp.maximum(largest, jnp.max(changed, -1))
            base = _finite_or_zero(larger)
            powers = jnp.exp(changed - base[..., None])
            kept = jnp.exp(largest - base)
            weights = _grouped(powers.astype(query.dtype), scores.key)
            product = contract(weights, scores.columns_of(scores.value, column), ((4,), (2,)), BATCH_AND_HEAD)
            output = output * kept[..., None] + product.reshape(output.shape).astype(dtype)
            return larger, total * kept + jnp.sum(powers, -1), output

        start = (
            jnp.full(shape, -jnp.inf, dtype),
            jnp.zeros(shape, dtype),
            jnp.zeros((*shape, value.shape[-1]), dtype),
        )
        return lax.fori_loop(0, tiling.counts[row], step, start)

    rows = lax.iota(np.int32, tiling.order.shape[0])
    largest, total, output = (_joined(each, scores.queries) for each in lax.map(row_of_tiles, rows))
    sees_nothing = total == 0
    output = output / jnp.where(sees_nothing, jnp.ones((), dtype), total)[..., None]
    logarithm = jnp.where(sees_nothing, -jnp.inf, largest + jnp.log(total))
    return output.astype(query.dtype), logarithm / math.log(2), largest / math.log(2)


def _finite_or_zero(largest: jax.Array) -> jax.Array:
    return jnp.where(largest == -jnp.inf, jnp.zeros((), largest.dtype), largest)


def _joined(array: jax.Array, rows: int) -> jax.Array:
    """(tile, batch, head, row, ...) as (batch, head, row of all tiles, ...), without the rows that are padding."""
    array = jnp.moveaxis(array, 0, 2)
    joined = array.reshape(*array.shape[:2], array.shape[2] * array.shape[3], *array.shape[4:])
    return lax.slice_in_dim(joined, 0, rows, axis=2)


def flex_attention_backward(
    query: jax.Array,
    key_: jax.Array,
    value: jax.Array,
    output: jax.Array,
    logarithm: jax.Array,
    grad_output: jax.Array | None,
    grad_logarithm: jax.Array | None,
    score_graph: GraphModule,
    joint_graph: GraphModule,
    mask: Sequence[Any],
    scale: Any,
    kernel_options: Any = None,
    score_captured: _Arrays = (),
    mask_captured: _Arrays = (),
    key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array | None, ...]]:
    """Return the gradients of query, key, value, and of each tensor that `score_mod` captured, or `None` for it.

    `joint_graph` takes a score, the four indices, the gradient of the changed score and the captured tensors, and gives
    the gradients of all but the fourth.
    """
    _refuse_draws(key)
    scores = _scores(query, key_, value, mask, scale, mask_captured)
    tiling = scores.tiling
    dtype = jnp.result_type(widened(query).dtype, np.float32)
    if dtype == np.float64:
        # PyTorch keeps the logarithms in float32.
        given = (query, key_, value, score_graph, mask, scale, None, score_captured, mask_captured)
        logarithm = flex_attention(*given)[1]
    grad_output = jnp.zeros_like(output) if grad_output is None else grad_output
    mean = jnp.sum(output.astype(dtype) * grad_output.astype(dtype), -1)
    if grad_logarithm is not None:
        mean = mean - grad_logarithm.astype(dtype) / math.log(2)
    logarithm = logarithm.astype(dtype) * math.log(2)
    logarithm, mean = (_padded(each, 2, tiling.rows) for each in (logarithm, mean))
    grads = _padded(_grouped(grad_output, scores.key), 3, tiling.rows)
    joint = _Joint(joint_graph, score_captured)
    backward = _Backward(scores, score_graph, score_captured, joint, grads, logarithm, mean)

    def row_of_tiles(state: Any, row: Any) -> Any:
        start = (jnp.zeros((*scores.query.shape[:3], tiling.rows, query.shape[-1]), dtype), *state)
        grad_query, *state = lax.fori_loop(0, tiling.counts[row], lambda n, s: backward.step(row, n, s), start)
        return tuple(state), grad_query

    start = (
        jnp.zeros(scores.key.shape, dtype),
        jnp.zeros(scores.value.shape, dtype),
        tuple(jnp.zeros(each.shape, jnp.result_type(each.dtype, np.float32)) for each in joint.differentiated),
    )
    rows = lax.iota(np.int32, tiling.order.shape[0])
    (grad_key, grad_value, grad_captured), grad_query = lax.scan(row_of_tiles, start, rows)
    grad_query = grad_query.reshape(grad_query.shape[0], *scores.heads, *grad_query.shape[4:])
    return (
        _joined(grad_query, scores.queries).astype(query.dtype),
        _summed(grad_key, key_),
        _summed(grad_value, value),
        joint.by_place(grad_captured),
    )


@dataclass(frozen=True, slots=True)
class _Backward:
    """What the gradients of all tiles share. `logarithm` is natural; `mean` is what the softmax takes off each row."""

    scores: _Scores
    score_graph: GraphModule
    score_captured: _Arrays
    joint: "_Joint"
    grads: jax.Array
    logarithm: jax.Array
    mean: jax.Array

    def step(self, row: Any, number: Any, state: Any) -> Any:
        """Add what one tile gives to the gradients: of query for these rows, of key, value and captured tensors."""
        grad_query, grad_key, grad_value, grad_captured = state
        scores, dtype, narrow = self.scores, self.mean.dtype, self.scores.query.dtype
        column = scores.tiling.order[row, number]
        plain = scores.of_tile(row, column)
        allowed = scores.allowed(row, column)
        changed = scores.apply(self.score_graph, self.score_captured, row, column, plain).astype(dtype)
        base = _finite_or_zero(scores.rows_of(self.logarithm, row, 2))
        powers = jnp.exp(jnp.where(allowed, changed, -jnp.inf) - base[..., None])
        grad_rows = scores.rows_of(self.grads, row)
        weights = _grouped(powers.astype(narrow), scores.key)
        grad_value = _added(grad_value, column, contract(weights, grad_rows, _ROWS, BATCH_AND_HEAD), scores.tiling)
        products = contract(grad_rows, scores.columns_of(scores.value, column), ((4,), (3,)), BATCH_AND_HEAD)
        grad_powers = products.reshape(powers.shape).astype(dtype) - scores.rows_of(self.mean, row, 2)[..., None]
        grad_scores, found = self.joint.of_tile(scores, row, column, plain, powers * grad_powers)
        scaled = grad_scores.astype(dtype) * jnp.asarray(scores.scale, dtype)
        scaled = _grouped(jnp.where(allowed, scaled, jnp.zeros((), dtype)).astype(narrow), scores.key)
        product = contract(scaled, scores.columns_of(scores.key, column), ((4,), (2,)), BATCH_AND_HEAD)
        product_of_keys = contract(scaled, scores.rows_of(scores.query, row), _ROWS, BATCH_AND_HEAD)
        return (
            grad_query + product.astype(dtype),
            _added(grad_key, column, product_of_keys, scores.tiling),
            grad_value,
            tuple(one + other.astype(one.dtype) for one, other in zip(grad_captured, found, strict=True)),
        )


_ROWS = ((2, 3), (2, 3))


def _added(total: jax.Array, column: Any, part: jax.Array, tiling: _Tiling) -> jax.Array:
    start = column * tiling.columns
    before = lax.dynamic_slice_in_dim(total, start, tiling.columns, 2)
    return lax.dynamic_update_slice_in_dim(total, before + part.astype(total.dtype), start, 2)


def _summed(grad: jax.Array, of: jax.Array) -> jax.Array:
    """A gradient without its padding, for an operand whose only batch all may share."""
    grad = lax.slice_in_dim(grad, 0, of.shape[2], axis=2)
    return (jnp.sum(grad, 0, keepdims=True) if of.shape[0] != grad.shape[0] else grad).astype(of.dtype)


class _Joint:
    """The gradient of `score_mod`, and which of the captured tensors have one."""

    def __init__(self, graph: GraphModule, captured: _Arrays) -> None:
        self._graph = graph
        self._captured = captured
        outputs: Any = graph.graph.output_node().args[0]
        self._places = [place for place, node in enumerate(outputs[5:]) if node is not None]

    @property
    def differentiated(self) -> list[jax.Array]:
        return [self._captured[place] for place in self._places]

    def of_tile(
        self, scores: _Scores, row: Any, column: Any, plain: jax.Array, grad: jax.Array
    ) -> tuple[jax.Array, list[jax.Array]]:
        """The gradients of the scores of a tile, and those of the captured tensors by all elements of the tile."""

        def function(*arguments: Any) -> Any:
            found = fx.interpret(self._graph, [*arguments, *self._captured], ())
            return found[0], [_total(found[5 + place]) for place in self._places]

        return scores.apply_function(function, (0, None), row, column, plain, grad)  # type: ignore[no-any-return]

    def by_place(self, found: Sequence[jax.Array]) -> tuple[jax.Array | None, ...]:
        results: list[jax.Array | None] = [None] * len(self._captured)
        for place, each in zip(self._places, found, strict=True):
            results[place] = each.astype(self._captured[place].dtype)
        return tuple(results)


@jax.custom_batching.custom_vmap
def _total(array: jax.Array) -> jax.Array:
    """The sum of what all calls under `jax.vmap` give: of a captured tensor's gradient by one element of a tile."""
    return array


@_total.def_vmap
def _(size: int, batched: Any, array: jax.Array) -> Any:
    return _total(jnp.sum(array, 0)), False


@lowers_named("flex_lib::zeros_and_scatter")
def zeros_and_scatter(shape: Sequence[int], indices: Sequence[jax.Array], values: jax.Array) -> jax.Array:
    """Zeros of a shape with `values` added at `indices`. Under `jax.vmap` all calls add to one array."""
    return _scattered(tuple(shape))(tuple(indices), values)


def _scattered(shape: tuple[int, ...]) -> Callable[..., jax.Array]:
    @jax.custom_batching.custom_vmap
    def scatter(indices: tuple[jax.Array, ...], values: jax.Array) -> jax.Array:
        return jnp.zeros(shape, values.dtype).at[indices].add(values)

    @scatter.def_vmap
    def _(size: int, batched: Any, indices: tuple[jax.Array, ...], values: jax.Array) -> Any:
        spread = [
            each if is_batched else jnp.broadcast_to(each, (size, *each.shape))
            for each, is_batched in zip(indices, batched[0], strict=True)
        ]
        values = values if batched[1] else jnp.broadcast_to(values, (size, *values.shape))
        return scatter(tuple(spread), values), False

    return scatter


fx.higher_order[private.flex_attention] = flex_attention
fx.higher_order[private.flex_attention_backward] = flex_attention_backward
