"""Rerun a recorded step one operator at a time, to see every result."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import numpy as np

from ...atomic import uncollected
from ...compile.xla_compile import compiled_function
from ...ir.call_plan import Plan
from ...ir.graph import Graph, Operation
from ...lowering.machinery import replica_axis
from ...lowering.machinery.lower_call import lower
from ...metrics.observers import observers
from ...runtime import buffers
from ...runtime.device_assignment import Target


class Stop(NamedTuple):
    """One operator has run: what it read and what it gave."""

    number: int  # of the operation
    operation: Operation
    operands: list[jax.Array]
    results: list[jax.Array]
    numbers: tuple[float | int, ...]
    key: Any  # None: it draws nothing


def walk(
    graph: Graph,
    inputs: Sequence[jax.Array],
    numbers: Sequence[float | int],
    keys: np.ndarray | None,
    target: Target,
) -> Iterator[Stop]:
    """Run `graph` on `target`, operator by operator. Drop values that no later operator reads."""
    values: list[Any] = list(inputs)
    leave = _last_reads(graph)
    programs: dict[Hashable, Callable[..., Any]] = {}
    with jax.enable_x64(True), jax.default_device(target.device):
        random = jax.random.wrap_key_data(buffers.of_array(keys), impl="rbg") if keys is not None else None
    for index, operation in enumerate(graph.operations):
        plan, first = operation.plan, operation.first_number
        own = tuple(numbers[first : first + len(plan.numbers)])
        operands = [values[slot] for slot in operation.operands]
        # Generators may be left between two of their items: no setting of JAX may be.
        with jax.enable_x64(True), jax.default_device(target.device):
            key = operation.key(random)
            # -0.0 equals 0.0, and takes another program.
            kind = plan, tuple(map(repr, own)), tuple((x.shape, x.dtype, x.sharding, x.committed) for x in operands)
            run = programs.get(kind)
            if run is None:
                run = programs[kind] = _compiled(plan, own, operands, key, target)
            results = run(operands, key)
        values.extend(results)
        yield Stop(index, operation, operands, results, own, key)
        for slot in leave[index]:
            values[slot] = None


@uncollected
def _compiled(
    plan: Plan, numbers: tuple[float | int, ...], operands: list[jax.Array], key: Any, target: Target
) -> Callable[..., Any]:
    def run(operands: list[jax.Array], key: Any) -> Any:
        return lower(plan, operands, list(numbers), key)

    with _lowering_for(target):
        return uncollected(compiled_function(run, (operands, key), target))


def _lowering_for(target: Target) -> AbstractContextManager[None]:
    """Lower as for a step that is divided among devices, which draws other numbers; else for a device alone."""
    return replica_axis.lowering_for(target if target.is_spread else None)


def _last_reads(graph: Graph) -> list[list[int]]:
    """Return for each operation the slots that nothing reads after it."""
    last: dict[int, int] = {}
    for index, operation in enumerate(graph.operations):
        for slot in operation.operands:
            last[slot] = index
        for part in range(len(operation.plan.outputs)):
            last.setdefault(operation.first_output + part, index)
    leave: list[list[int]] = [[] for _ in graph.operations]
    for slot, index in last.items():
        leave[index].append(slot)
    return leave


def look_inside(stop: Stop, watch: Callable[[Any, Any, Any], None], target: Target) -> None:
    """Run an operator once more; if it is a graph of others, show `watch` the operators that it consists of."""
    with observers.registered("watch_node", watch), jax.enable_x64(True), _lowering_for(target):
        lower(stop.operation.plan, stop.operands, list(stop.numbers), stop.key)
