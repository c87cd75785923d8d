"""PyTorch's loops and branches as JAX's. Their bodies are graphs, each interpreted once."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torch.fx import GraphModule

from ...compat.names import torch as private
from ...compat.names.torch import HigherOrderOperator
from ..fx_graphs import interpreter
from ..machinery.registry import Lower


def body(graph: GraphModule) -> Callable[..., list[jax.Array]]:
    """Return the graph as a function of its arrays and of a key, from which each of its draws takes its own; gives a
    list.
    """

    def run(arrays: Sequence[object], key: jax.Array | None) -> list[jax.Array]:
        count = interpreter.draws(graph)
        keys = jax.random.split(key, count) if count and key is not None else ()
        results = interpreter.interpret(graph, arrays, keys)
        return list(results) if isinstance(results, list | tuple) else [results]

    return run


def _lowers(operator: object) -> Callable[[Lower], Lower]:
    def register(function: Lower) -> Lower:
        interpreter.higher_order[operator] = function
        return function

    return register


def _key_of_round(key: jax.Array | None, number: jax.Array) -> jax.Array | None:
    return None if key is None else jax.random.fold_in(key, number.astype(np.uint32))


def _keeping_dtypes(results: Sequence[object], before: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(new).astype(old.dtype) for new, old in zip(results, before, strict=True))


@_lowers(private.while_loop)
def while_loop(
    condition: GraphModule,
    step: GraphModule,
    carried: Sequence[jax.Array],
    additional: Sequence[jax.Array],
    mutated_arg_indices: str = "",
    key: jax.Array | None = None,
) -> list[jax.Array]:
    # Each round draws from keys of its own, as does the condition.
    def goes_on(state: tuple[jax.Array, tuple[jax.Array, ...]]) -> jax.Array:
        number, values = state
        return jnp.reshape(body(condition)((*values, *additional), _key_of_round(key, 2 * number))[0], ())

    def once(state: Any) -> Any:
        number, values = state
        results = body(step)((*values, *additional), _key_of_round(key, 2 * number + 1))
        return number + 1, _keeping_dtypes(results, values)

    start = tuple(jnp.asarray(value) for value in carried)
    return list(lax.while_loop(goes_on, once, (jnp.zeros((), np.int32), start))[1])


@_lowers(private.cond)
def cond(
    predicate: jax.Array | bool,
    true: GraphModule,
    false: GraphModule,
    operands: Sequence[jax.Array],
    key: jax.Array | None = None,
) -> object:
    def branch(graph: GraphModule) -> Callable[..., list[jax.Array]]:
        return lambda *arrays: body(graph)(arrays, key)

    if isinstance(predicate, bool):
        results = branch(true if predicate else false)(*operands)
    else:
        results = lax.cond(jnp.reshape(predicate, ()).astype(np.bool_), branch(true), branch(false), *operands)
    return list(results) if isinstance(true.graph.output_node().args[0], list | tuple) else results[0]


@_lowers(private.map_loop)
def map_loop(
    function: GraphModule, xs: Sequence[jax.Array], additional: Sequence[object], key: jax.Array | None = None
) -> list[jax.Array]:
    def once(number: jax.Array, slices: Sequence[jax.Array]) -> Any:
        return number + 1, body(function)((*slices, *additional), _key_of_round(key, number))

    return list(lax.scan(once, jnp.zeros((), np.int32), list(xs))[1])


@_lowers(private.associative_scan)
def associative_scan(
    combine: GraphModule, xs: Sequence[jax.Array], additional: Sequence[object], key: jax.Array | None = None
) -> list[jax.Array]:
    def pair(left: Sequence[jax.Array], right: Sequence[jax.Array]) -> list[jax.Array]:
        return body(combine)((*left, *right, *additional), key)

    return list(lax.associative_scan(jax.vmap(pair), list(xs)))


class _OfGraphs(HigherOrderOperator):
    """A loop whose bodies are already graphs, so that any trace can contain it (`compiled/loops/nested_loops.py`)."""

    def __init__(self, name: str) -> None:
        super().__init__(name)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return super().__call__(*args, **kwargs)


# Takes (body, init, xs, constants, length, reverse).
graph_scan = _OfGraphs("xla_scan")
# Takes (condition, body, carried, constants).
graph_while = _OfGraphs("xla_while")
_lowers(graph_while)(while_loop)


@_lowers(graph_scan)
def _graph_scan(
    combine: GraphModule,
    init: Sequence[jax.Array],
    xs: Sequence[jax.Array],
    additional: Sequence[jax.Array],
    length: int | None = None,
    reverse: bool = False,
    key: jax.Array | None = None,
) -> list[jax.Array]:
    def once(state: Any, slices: Sequence[jax.Array]) -> Any:
        number, carry = state
        results = body(combine)((*carry, *slices, *additional), _key_of_round(key, number))
        return (number + 1, _keeping_dtypes(results[: len(init)], carry)), results[len(init) :]

    (_, carry), outputs = lax.scan(once, (jnp.zeros((), np.int32), tuple(init)), list(xs), length, reverse)
    return [*carry, *outputs]


_lowers(private.scan)(_graph_scan)
