"""A graph as a JAX function, and that function lowered: some of the graph's numbers are baked in, others arguments."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import dtypes
from ..graph.graph import Graph
from ..lowering.call import NeedsStaticNumber, lower
from ..private import jax as private
from .origins import UNKNOWN, Origins

# XLA may leave out roundings to a narrow float between operations that it fuses, and then what a program gives depends
# on which of its results somebody holds. PyTorch rounds each. Accelerators keep XLA's default: what it costs them has
# not been measured.
_OPTIONS = {"cpu": {"xla_allow_excess_precision": False}}


class MustBake(Exception):
    """Numbers that were to be arguments, and that a rule looked at."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


def by_type(graph: Graph, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Those of the `numbers` (their indices in the graph) that are floats, and the others: a vector holds one type."""
    types = graph.number_types
    return [i for i in numbers if types[i] is float], [i for i in numbers if types[i] is not float]


def lowered(
    graph: Graph,
    donated: tuple[int, ...],
    device: jax.Device,
    numbers: Sequence[float | int],
    arguments: Sequence[int],
    origins: Origins,
) -> Any:
    """The graph lowered for `device`: what its executable takes is its inputs, then what `as_function` says."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    floats, ints = by_type(graph, arguments)

    def describe(size: tuple[int, ...], dtype: np.dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(size, dtype, sharding=sharding)

    with jax.enable_x64(True), private.located(None, ()):
        described = [describe(spec.size, dtypes.to_jax(dtypes.on_device(spec.dtype))) for spec in graph.inputs]
        if floats:
            described.append(describe((len(floats),), np.dtype(np.float64)))
        if ints:
            described.append(describe((len(ints),), np.dtype(np.int64)))
        if graph.draws:
            described.append(describe((graph.draws, 4), np.dtype(np.uint32)))
        function = as_function(graph, list(numbers), floats, ints, origins)
        options: Any = _OPTIONS.get(device.platform)
        jitted = jax.jit(function, donate_argnums=donated, keep_unused=True, compiler_options=options)
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
