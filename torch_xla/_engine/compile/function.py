"""A graph as a JAX function, and that function lowered: some of the graph's numbers are baked in, others arguments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import compiler_options, dtypes
from ..client.target import Target
from ..graph.graph import Graph
from ..graph.sharding import ANY, Placed, Sharding
from ..graph.spec import Spec
from ..lowering import replicas
from ..lowering.call import NeedsStaticNumber, lower
from ..lowering.sharding import from_jax, to_jax
from ..private import jax as private
from . import replicated
from .executable_key import Key
from .source_metadata import UNKNOWN, Origins

# XLA may leave out roundings to a narrow float between operations that it fuses, and then what a program gives depends
# on which of its results somebody holds. PyTorch rounds each. Accelerators keep XLA's default: what it costs them has
# not been measured.
_OPTIONS = {"cpu": {"xla_allow_excess_precision": False}}


def options_for(target: Target) -> dict[str, Any] | None:
    """What XLA is asked for when it compiles for `target`, besides its flags; `None`: nothing."""
    return {**_OPTIONS.get(target.platform, {}), **compiler_options.chosen()} or None


class MustBake(Exception):
    """Numbers that were to be arguments, and that a rule looked at."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


def by_type(graph: Graph, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Those of the `numbers` (their indices in the graph) that are floats, and the others: a vector holds one type."""
    types = graph.number_types
    return [i for i in numbers if types[i] is float], [i for i in numbers if types[i] is not float]


@dataclass(frozen=True, slots=True)
class Signature:
    """What an executable takes and gives, and which inputs it gives away (by their places)."""

    inputs: tuple[jax.ShapeDtypeStruct, ...]
    outputs: tuple[jax.ShapeDtypeStruct, ...]  # without a sharding where XLA chooses it
    donated: tuple[int, ...]


def signature(graph: Graph, key: Key) -> Signature:
    """That of a graph's executable: its inputs, then vectors of the float and int arguments, then random keys.

    Where each process runs the graph by itself it is what each takes and gives.
    """
    target = key.target
    everywhere = target.everywhere
    floats, ints = by_type(graph, key.arguments)

    def describe(size: tuple[int, ...], dtype: np.dtype, placed: Any = everywhere) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(size, dtype, sharding=placed)

    def value(spec: Spec, placed: Placed) -> jax.ShapeDtypeStruct:
        dtype = dtypes.to_jax(dtypes.on_device(spec.dtype))
        return describe(spec.size, dtype, None if placed is ANY else to_jax(placed, target))

    with jax.enable_x64(True):
        inputs = [value(spec, spec.sharding) for spec in graph.inputs]
        if floats:
            inputs.append(describe((len(floats),), np.dtype(np.float64)))
        if ints:
            inputs.append(describe((len(ints),), np.dtype(np.int64)))
        if graph.draws:
            inputs.append(describe((graph.draws, 4), np.dtype(np.uint32)))
        results = key.results or (None,) * len(graph.outputs)
        outputs = [value(graph.specs[slot], placed) for slot, placed in zip(graph.outputs, results, strict=True)]
    return Signature(tuple(inputs), tuple(outputs), key.donated)


def results_of(executable: Any, signature: Signature, target: Target) -> list[Sharding | None]:
    """How an executable of several devices divides each output; nothing for one of one device."""
    if not target.is_spread:
        return []
    placed = jax.tree.leaves(executable.output_shardings)
    return [from_jax(each, given.shape, target) for each, given in zip(placed, signature.outputs, strict=True)]


def lowered(graph: Graph, key: Key, numbers: Sequence[float | int], origins: Origins) -> Any:
    """The graph lowered as its `key` says, with those of the `numbers` baked in that are no arguments: its executable
    has its `signature`."""
    target = key.target
    floats, ints = by_type(graph, key.arguments)
    with jax.enable_x64(True), private.located(None, ()), replicas.lowering_for(target):
        function = as_function(graph, list(numbers), floats, ints, origins)
        found = signature(graph, key)
        described: Sequence[Any] = found.inputs
        if target.axis is not None:
            function, described = replicated.of_each(function, found.inputs, found.outputs, target)
        options: Any = options_for(target)
        given = tuple(each.sharding for each in found.outputs) if target.is_spread else None
        jitted = jax.jit(
            function, donate_argnums=key.donated, keep_unused=True, compiler_options=options, out_shardings=given
        )
        return jitted.trace(*described).lower()


def as_function(
    graph: Graph, numbers: list[float | int], floats: list[int], ints: list[int], origins: Origins = UNKNOWN
) -> Callable[..., tuple[jax.Array, ...]]:
    """The graph as a function of its inputs, then of the vectors of float numbers, int numbers and random keys."""

    def program(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        rest = list(arguments[len(graph.inputs) :])
        values: list[Any] = list(arguments[: len(graph.inputs)])
        filled: list[Any] = list(numbers)
        for indices, dtype in ((floats, np.dtype(np.float64)), (ints, np.dtype(np.int64))):
            if indices:
                vector = rest.pop(0)
                for place, index in enumerate(indices):
                    filled[index] = private.weakly_typed(vector[place], dtype)
        keys = jax.random.wrap_key_data(rest.pop(0), impl="rbg") if graph.draws else None
        for index, operation in enumerate(graph.operations):
            plan, first = operation.plan, operation.first_number
            own = range(first, first + len(plan.numbers))
            key = operation.key(keys)
            try:
                with origins.of(graph, index):
                    values.extend(lower(plan, [values[s] for s in operation.operands], [filled[i] for i in own], key))
            except NeedsStaticNumber as error:
                if any(isinstance(filled[i], jax.Array) for i in own):
                    raise MustBake(own) from error
                raise
        return tuple(jnp.asarray(values[slot]) for slot in graph.outputs)

    return program
