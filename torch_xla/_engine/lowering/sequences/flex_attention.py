"""Flex attention and its gradient: attention whose scores and mask are functions of the user's.

PyTorch gives both functions as graphs of scalars: `score_mod(score, batch, head, row, column, *captured)` and
`mask_mod(batch, head, row, column, *captured)`. Here they are evaluated for one tile of scores at a time, in float32
for narrower operands, as PyTorch's kernels do. Tiles that the block mask leaves out for all batches and heads are not
computed.

Both operators count logarithms to the base 2, as PyTorch's kernels do. Shapes: query (Bq, Hq, Sq, D), key (Bkv, Hkv,
Skv, D), value (Bkv, Hkv, Skv, Dv). Hq is a multiple of Hkv, and Bkv may be 1.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torch.fx import GraphModule

from ...compat.names import torch as private
from ..fx_graphs import interpreter
from ..machinery.registry import lowers_named
from .tiled_attention import SIDE, Tiles, Tiling, backward, forward

# Blocks up to this length are tiles as they are.
_MOST_OF_A_TILE = 1024

# Where the parts of PyTorch's tuple for a block mask are: numbers and indices of blocks that are masked in part, those
# that are not masked at all, and from behind the two lengths of a block and the mask's function.
_PARTIAL, _FULL = (2, 3), (4, 5)
_LENGTHS, _MASK = (-3, -2), -1

_Arrays = Sequence[jax.Array]


class _Blocks(Tiles):
    """Scores that are cut along the blocks of a block mask.

    `states` says for each tile, by batch and head of the mask, whether it is left out (0), masked by the function (1)
    or taken whole (2).
    """

    def __init__(
        self,
        operands: tuple[jax.Array, jax.Array, jax.Array],
        mask: Sequence[jax.Array | int | GraphModule | None],
        scale: float | None,
        functions: tuple[GraphModule, _Arrays, _Arrays],
        joint: GraphModule | None = None,
    ) -> None:
        query, key, value = operands
        batch = query.shape[0]
        if key.shape[0] not in (1, batch):
            raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={batch} and Bkv={key.shape[0]}")
        key, value = (jnp.broadcast_to(each, (batch, *each.shape[1:])) for each in (key, value))
        tiling, self._states = _tiling(mask, query.shape[2], key.shape[2])
        super().__init__(query, key, value, scale, tiling)
        graph = mask[_MASK]
        assert isinstance(graph, GraphModule)
        self._mask = graph
        self._score, self._captured, self._captured_by_mask = functions
        self._joint = joint
        outputs: Any = () if joint is None else joint.graph.output_node().args[0]
        self._places = [place for place, node in enumerate(outputs[5:]) if node is not None]

    def changed(self, row: Any, column: Any, plain: jax.Array) -> jax.Array:
        return self._by_graph(self._score, self._captured, row, column, plain)

    def masked(self, row: Any, column: Any) -> jax.Array:
        states = self._states[:, :, row, column][:, :, None, None]
        passed = self._by_graph(self._mask, self._captured_by_mask, row, column).astype(np.bool_)
        inside = (self.row_numbers(row) < self.queries)[:, None] & (self.column_numbers(column) < self.keys)
        return inside & ((states == 2) | ((states == 1) & passed))

    def differentiated(self) -> Sequence[jax.Array]:
        return [self._captured[place] for place in self._places]

    def changed_gradient(
        self, row: Any, column: Any, plain: jax.Array, grad: jax.Array
    ) -> tuple[jax.Array, Sequence[jax.Array]]:
        def function(*arguments: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
            assert self._joint is not None
            found = interpreter.interpret(self._joint, [*arguments, *self._captured], (), is_wide=True)
            return found[0], [_total(found[5 + place]) for place in self._places]

        found: tuple[jax.Array, Sequence[jax.Array]] = self._by_scalars(function, (0, None), row, column, plain, grad)
        return found

    def by_place(self, grads: Sequence[jax.Array]) -> tuple[jax.Array | None, ...]:
        """Return the gradients of all captured tensors, and `None` for captured numbers.

        PyTorch describes the operator as one with a gradient for each. Zeros take the place of those that it ignores.
        """
        results = [None if isinstance(each, int | float) else jnp.zeros_like(each) for each in self._captured]
        for place, grad in zip(self._places, grads, strict=True):
            results[place] = grad.astype(self._captured[place].dtype)
        return tuple(results)

    def _by_graph(
        self, graph: GraphModule, captured: _Arrays, row: jax.Array, column: jax.Array, *tiles: jax.Array
    ) -> jax.Array:
        """Evaluate a graph of scalars that gives one scalar for each element of a tile."""

        def function(*scalars: jax.Array) -> jax.Array:
            return interpreter.interpret(graph, [*scalars, *captured], (), is_wide=True)

        return self._by_scalars(function, 0, row, column, *tiles)  # type: ignore[no-any-return]

    def _by_scalars(
        self,
        function: Callable[..., Any],
        out_axes: int | tuple[int | None, ...],
        row: jax.Array,
        column: jax.Array,
        *tiles: jax.Array,
    ) -> Any:
        """Evaluate a function of scalars for each element of a tile.

        The first of `tiles` is the function's first argument, the others come behind the four indices.
        """
        batch, head = (lax.iota(np.int32, size) for size in self.heads)
        # Beside the last row and column there are none whose elements the function could look at.
        rows = jnp.minimum(self.row_numbers(row), self.queries - 1)
        columns = jnp.minimum(self.column_numbers(column), self.keys - 1)
        first, others = tiles[:1], tiles[1:]
        for index in reversed(range(4)):
            places = [0 if index == each else None for each in range(4)]
            function = jax.vmap(function, (*[0] * len(first), *places, *[0] * len(others)), out_axes)
        return function(*first, batch, head, rows, columns, *others)


def _tiling(mask: Sequence[Any], queries: int, keys: int) -> tuple[Tiling, jax.Array]:
    """Cut the scores along the blocks of a block mask, and say for each tile what the mask says."""
    lengths = [int(mask[place]) for place in _LENGTHS]
    sides = [_side(length, size) for length, size in zip(lengths, (queries, keys), strict=True)]
    counts = [-(-size // side) for size, side in zip((queries, keys), sides, strict=True)]
    blocks_of_keys = -(-keys // lengths[1])
    states = _listed(mask[_PARTIAL[0]], mask[_PARTIAL[1]], blocks_of_keys).astype(np.int32)
    if mask[_FULL[0]] is not None:
        states = jnp.where(_listed(mask[_FULL[0]], mask[_FULL[1]], blocks_of_keys), np.int32(2), states)
    rows, columns = (
        np.minimum(np.arange(count) * side // length, most - 1)
        for count, side, length, most in zip(counts, sides, lengths, states.shape[2:], strict=True)
    )
    states = states[:, :, rows][:, :, :, columns]
    needed = jnp.any(states > 0, (0, 1))
    order = jnp.argsort(~needed, axis=-1, stable=True).astype(np.int32)
    return Tiling(sides[0], sides[1], order, jnp.sum(needed, -1, dtype=np.int32)), states


def _side(block: int, size: int) -> int:
    """Return the side of a tile that never crosses the border between two blocks."""
    if block >= size:
        return min(size, SIDE)
    return SIDE if block > _MOST_OF_A_TILE and block % SIDE == 0 else block


def _listed(numbers: jax.Array, indices: jax.Array, columns: int) -> jax.Array:
    """Return which blocks the first `numbers` of the `indices` name: booleans by (batch, head, row, column)."""
    is_listed = lax.broadcasted_iota(np.int32, indices.shape, 3) < numbers[..., None]
    places = jnp.where(is_listed, indices, columns)  # out of range, and so dropped
    batch, head, row = (lax.broadcasted_iota(np.int32, indices.shape, axis) for axis in range(3))
    named = jnp.zeros((*indices.shape[:3], columns), np.bool_)
    return named.at[batch, head, row, places].set(True, mode="drop")


def _refuse_draws(key: jax.Array | None) -> None:
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
    mask: Sequence[jax.Array | int | GraphModule | None],
    scale: float | None,
    kernel_options: object = None,
    score_captured: _Arrays = (),
    mask_captured: _Arrays = (),
    key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the output, and for each row the logarithm of the sum of its exponentials and its largest score."""
    _refuse_draws(key)
    functions = score_graph, score_captured, mask_captured
    output, logarithm, largest = forward(_Blocks((query, key_, value), mask, scale, functions))
    return output, logarithm / math.log(2), largest / math.log(2)


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
    mask: Sequence[jax.Array | int | GraphModule | None],
    scale: float | None,
    kernel_options: object = None,
    score_captured: _Arrays = (),
    mask_captured: _Arrays = (),
    key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array | None, ...]]:
    """Return the gradients of query, key, value, and of each tensor that `score_mod` captured.

    `joint_graph` takes a score, the four indices, the gradient of the changed score and the captured tensors, and gives
    the gradients of all but the fourth.
    """
    _refuse_draws(key)
    functions = score_graph, score_captured, mask_captured
    blocks = _Blocks((query, key_, value), mask, scale, functions, joint_graph)
    if blocks.dtype == np.float64:
        logarithm = forward(blocks)[1]  # PyTorch keeps it in float32
    else:
        logarithm = logarithm * math.log(2)
    if grad_logarithm is not None:
        grad_logarithm = grad_logarithm.astype(blocks.dtype) / math.log(2)
    grad_output = jnp.zeros_like(output) if grad_output is None else grad_output
    grad_query, *grads, grad_captured = backward(blocks, output, logarithm, grad_output, grad_logarithm)
    grad_key, grad_value = (_summed(grad, of) for grad, of in zip(grads, (key_, value), strict=True))
    return grad_query.astype(query.dtype), grad_key, grad_value, blocks.by_place(grad_captured)


def _summed(grad: jax.Array, of: jax.Array) -> jax.Array:
    """Return a gradient in the shape of its operand, whose only batch all may share."""
    return (jnp.sum(grad, 0, keepdims=True) if of.shape[0] != grad.shape[0] else grad).astype(of.dtype)


@jax.custom_batching.custom_vmap
def _total(array: jax.Array) -> jax.Array:
    """Mark a sum over all calls under `jax.vmap`: a captured tensor's gradient, over the elements of a tile."""
    return array


@_total.def_vmap
def _(size: int, batched: Any, array: jax.Array) -> Any:
    return _total(jnp.sum(array, 0)), False


@lowers_named("flex_lib::zeros_and_scatter")
def zeros_and_scatter(shape: Sequence[int], indices: Sequence[jax.Array], values: jax.Array) -> jax.Array:
    """Return zeros of a shape with `values` added at `indices`. Under `jax.vmap` all calls add to one array."""
    return _scattered(tuple(shape))(tuple(indices), values)


def _scattered(shape: tuple[int, ...]) -> Callable[..., jax.Array]:
    @jax.custom_batching.custom_vmap
    def scatter(indices: tuple[jax.Array, ...], values: jax.Array) -> jax.Array:
        return jnp.zeros(shape, values.dtype).at[indices].add(values)

    @scatter.def_vmap
    def _(size: int, batched: Any, indices: tuple[jax.Array, ...], values: jax.Array) -> tuple[jax.Array, bool]:
        spread = [
            each if is_batched else jnp.broadcast_to(each, (size, *each.shape))
            for each, is_batched in zip(indices, batched[0], strict=True)
        ]
        values = values if batched[1] else jnp.broadcast_to(values, (size, *values.shape))
        return scatter(tuple(spread), values), False

    return scatter


interpreter.higher_order[private.flex_attention] = flex_attention
interpreter.higher_order[private.flex_attention_backward] = flex_attention_backward
