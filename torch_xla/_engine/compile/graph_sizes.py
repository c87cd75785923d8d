"""Take the sizes out of a graph, and put others in: graphs that differ in nothing else have one outline."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..ir.call_plan import Number, Operand, Plan
from ..ir.graph import Graph
from ..ir.value_spec import Spec, spec_of
from ..ir.view.geometry import Geometry


class Outline(NamedTuple):
    """A graph, or a plan, without its sizes; and these, in order."""

    rest: Hashable
    sizes: tuple[int, ...]


_LARGEST = (1 << 63) - 1


class Fixed(ValueError):
    """A part of a graph has sizes that cannot be taken out."""


_outlines: WeakKeyDictionary[Plan, Outline] = WeakKeyDictionary()


def outline_of(graph: Graph) -> Outline:
    """Return the outline of a graph. Raises `Fixed` if one of its values is divided among devices."""
    sizes: list[int] = []
    rest: list[Hashable] = [_without(sizes, spec) for spec in graph.inputs]
    for operation in graph.operations:
        found = _of_plan(operation.plan)
        rest.append((found.rest, operation.operands))
        sizes += found.sizes
    return Outline((*rest, graph.outputs), tuple(sizes))


def with_sizes(graph: Graph, sizes: Sequence[int]) -> Graph:
    """Return a graph of the same outline with other sizes. Raises `Fixed` if an operation is made for its own sizes."""
    rest = iter(sizes)
    inputs = tuple(_filled(rest, spec) for spec in graph.inputs)
    operations = tuple(replace(operation, plan=_plan_with(rest, operation.plan)) for operation in graph.operations)
    return Graph(inputs, operations, graph.outputs)


def _of_plan(plan: Plan) -> Outline:
    found = _outlines.get(plan)
    if found is None:
        sizes: list[int] = []
        parts = _without(sizes, (plan.operands, plan.outputs, *plan.arguments))
        op = plan.op[0] if isinstance(plan.op, tuple) else plan.op  # behind it is the number of a decomposition
        kind = plan.numbers, plan.structure, plan.compute_dtype, plan.draws, plan.replaces, plan.effect
        found = _outlines[plan] = Outline((op, parts, kind), tuple(sizes))
    return found


def _plan_with(sizes: Iterator[int], plan: Plan) -> Plan:
    own = _of_plan(plan).sizes
    given = tuple(next(sizes) for _ in own)
    if given == own:
        return plan
    if isinstance(plan.op, tuple) or plan.inside is not None:
        raise Fixed(f"{plan.op} is made for its sizes")
    operands, outputs, *arguments = _filled(iter(given), (plan.operands, plan.outputs, *plan.arguments))
    return replace(plan, operands=operands, outputs=outputs, arguments=tuple(arguments))


def _without(sizes: list[int], part: object) -> Hashable:
    """Return `part` without the sizes in it, which are added to `sizes`."""

    def take(size: int) -> int:
        sizes.append(size)
        return 0

    def keep(rest: object) -> tuple[object, ...]:
        return type(rest), repr(rest) if isinstance(rest, float | complex) else rest

    return _hashable(_mapped(part, take, keep))


def _hashable(part: object) -> Hashable:
    if isinstance(part, dict):
        return tuple((name, _hashable(value)) for name, value in part.items())
    if isinstance(part, list | tuple):
        return type(part), tuple(map(_hashable, part))
    return part  # type: ignore[no-any-return]


def _filled(sizes: Iterator[int], part: object) -> Any:
    """Return `part` with the next of `sizes` in place of its own."""
    return _mapped(part, lambda size: next(sizes), lambda rest: rest)


def _mapped(part: Any, of_size: Callable[[int], int], of_rest: Callable[[object], object]) -> object:
    kind = type(part)
    if kind is int:
        return of_size(part) if part <= _LARGEST else of_rest(part)  # numbers may have 64 bits without a sign
    if isinstance(part, Spec):
        if part.sharding is not None:
            raise Fixed(f"{part} is divided among devices")
        size, stride = (tuple(map(of_size, each)) for each in (part.size, part.stride))
        return spec_of(size, stride, part.dtype)
    if isinstance(part, Geometry):
        size, stride = (tuple(map(of_size, each)) for each in (part.size, part.stride))
        return Geometry(size, stride, of_size(part.offset))
    if isinstance(part, Operand | Number):
        return part
    if isinstance(part, dict):
        return {name: _mapped(value, of_size, of_rest) for name, value in part.items()}
    if isinstance(part, list | tuple):
        parts = (_mapped(each, of_size, of_rest) for each in part)
        return kind(*parts) if hasattr(part, "_fields") else kind(parts)
    return of_rest(part)
