"""A graph whose sizes grow as one operation: the length is a number of the program, the arrays have a capacity.

The graph is traced with the sizes that it has at the least length, at the capacity and one step before. The common part
of the traces is a program of a symbolic length (`common_jaxpr`), which is evaluated on padded arrays
(`padded_functions`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..ir.call_plan import Operand, Plan
from ..ir.graph import Graph, Operation
from ..lowering.machinery.common_jaxpr import SYMBOL, common
from ..lowering.machinery.lower_call import NeedsStaticNumber, lower
from ..lowering.machinery.padded_functions import bounded
from . import composites, graph_fingerprint

GROWING = "xla::of_growing_sizes"


@dataclass(frozen=True, eq=False)
class Growth:
    """A graph with the sizes that it has at several lengths: the least, one before the capacity, and the capacity."""

    graphs: tuple[Graph, ...]
    lengths: tuple[int, ...]

    @cached_property
    def name(self) -> str:
        """Return a name that graphs which compute something else do not have, in any process."""
        code = [graph_fingerprint.text_of(each.code) for each in self.graphs]
        return sha256("\n".join((*code, str(self.lengths))).encode()).hexdigest()

    def __str__(self) -> str:
        try:
            return self.name
        except graph_fingerprint.Nameless:
            return object.__repr__(self)  # has an address, as what has no name in other processes


class StaticNumbers(Exception):
    """Numbers of the graph that a rule has to know."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


def graph_of(growth: Growth) -> Graph:
    """Return a graph of one operation, with the inputs and outputs of `growth` and one more number: the length."""
    inner = growth.graphs[-1]
    count, outputs = len(inner.inputs), tuple(inner.specs[slot] for slot in inner.outputs)
    operands = tuple(map(Operand, range(count)))
    plan = Plan(
        GROWING,
        ((growth, *operands), {}),
        inner.inputs,
        (*inner.number_types, int),
        outputs,
        (-1,) * len(outputs),
        draws=inner.draws,
    )
    operation = Operation(plan, tuple(range(count)), 0, 0 if inner.draws else -1, count, 0)
    return Graph(inner.inputs, (operation,), tuple(range(count, count + len(outputs))))


def computed(
    plan: Plan, operands: Sequence[jax.Array], numbers: Sequence[object], keys: jax.Array | None
) -> list[jax.Array]:
    """Return the results of the operation. Raises `StaticNumbers` for numbers that must not be arguments."""
    growth = plan.arguments[0][0]
    assert isinstance(growth, Growth)
    *own, length = numbers
    given = [index for index, number in enumerate(own) if isinstance(number, jax.Array)]
    arrays: list[Any] = [*operands, *(own[index] for index in given), *([] if keys is None else [keys])]
    traces = [jax.make_jaxpr(_function(graph, own, given, keys is not None))(*arrays) for graph in growth.graphs]
    found = common(traces, growth.lengths)
    return bounded(found, (SYMBOL,), growth.lengths[-1:])(jnp.asarray(length, np.int32)[None], *arrays)


def _function(
    graph: Graph, numbers: Sequence[object], given: Sequence[int], draws: bool
) -> Callable[..., list[jax.Array]]:
    def compute(index: int, operands: Sequence[Any], own: Sequence[Any], key: Any) -> Sequence[Any]:
        plan, first = graph.operations[index].plan, graph.operations[index].first_number
        try:
            return lower(plan, list(operands), list(own), key)
        except NeedsStaticNumber as error:
            raise StaticNumbers(range(first, first + len(plan.numbers))) from error

    def run(*arrays: jax.Array) -> list[jax.Array]:
        count, filled = len(graph.inputs), list[Any](numbers)
        for place, index in enumerate(given):
            filled[index] = arrays[count + place]
        values = composites.GraphRun(graph, arrays[:count], compute).run(filled, arrays[-1] if draws else None)
        return [jnp.asarray(values[slot]) for slot in graph.outputs]

    return run
