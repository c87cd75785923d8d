"""A graph as text: the listing that people and tests read, and the drawing that Graphviz makes of it."""

import hashlib
from collections.abc import Iterator, Sequence

from .. import dtypes
from ..compat.names.torch import schema_if_any
from ..metrics.user_lines import Line
from .call_plan import Number, Operand
from .graph import Graph, Operation
from .value_spec import Spec
from .view.geometry import Geometry


def to_text(
    graph: Graph,
    numbers: Sequence[object] = (),
    lines: Sequence[Line | None] = (),
    scopes: Sequence[tuple[str, ...]] = (),
) -> str:
    """Return the graph as text, one value or operation a line.

        IR {
          %0 = f32[8,128] xla::device_data()
          %1 = f32[8] aten::sum(%0), dim=[1], location=step@train.py:33, ROOT=0
        }

    `numbers` are the graph's recorded numbers, `lines` the source line of each operation, `scopes` the named blocks
    around it, shown as `scope=encoder/attention`. A missing number is shown by its type. `ROOT=i` marks the graph's
    output number i; part k of an operation with several results is `%n.k`, and as an output it is marked `ROOT=i:k`.
    The sharding of an input follows its shape, `f32[8,4]@[0, -]`: for each dimension the axes of the target's grid.
    """
    names = _names(graph)
    roots = _roots(graph)
    rows = [
        f"%{slot} = {shape(spec)} xla::device_data(){_root_marks(range(slot, slot + 1), roots)}"
        for slot, spec in enumerate(graph.inputs)
    ]
    for index, operation in enumerate(graph.operations):
        parts = operation.plan.outputs
        result = shape(parts[0]) if len(parts) == 1 else f"({', '.join(map(shape, parts))})"
        operands = ", ".join(f"%{names[slot]}" for slot in operation.operands)
        row = f"%{names[operation.first_output].partition('.')[0]} = {result} {name_of(operation)}({operands})"
        row += "".join(f", {attribute}" for attribute in _attributes(operation, numbers))
        if index < len(scopes) and scopes[index]:
            row += f", scope={'/'.join(scopes[index])}"
        line = lines[index] if index < len(lines) else None
        if line is not None:
            row += f", location={line[2]}@{line[0]}:{line[1]}"
        rows.append(row + _root_marks(_filled_by(operation), roots))
    return "".join(["IR {\n", *(f"  {row}\n" for row in rows), "}\n"])


def to_dot(graph: Graph, numbers: Sequence[object] = ()) -> str:
    """Return the graph in the language of Graphviz: a box for each value that enters and for each operation."""
    names = _names(graph)
    roots = _roots(graph)
    rows = []
    for slot, spec in enumerate(graph.inputs):
        marks = _root_marks(range(slot, slot + 1), roots)
        rows.append(f'node{slot} [label="{shape(spec)} xla::device_data{marks}"]')
    for operation in graph.operations:
        own = names[operation.first_output].partition(".")[0]
        shapes = ", ".join(map(shape, operation.plan.outputs))
        label = [f"{name_of(operation)}{_root_marks(_filled_by(operation), roots)}", shapes]
        label += _attributes(operation, numbers)
        text = "\\n".join(map(_quoted, label))
        rows.append(f'node{own} [label="{text}"]')
        for slot in operation.operands:
            source, _, part = names[slot].partition(".")
            rows.append(f"node{source} -> node{own}" + (f' [label="{part}"]' if part else ""))
    return "".join(["digraph G {\n", "  node [shape=box]\n", *(f"  {row}\n" for row in rows), "}\n"])


def digest(graph: Graph) -> bytes:
    """Return 16 bytes that equal graphs have in common, in every process. Numbers and lines do not count."""
    return _digest(to_text(graph))


def root_digests(graph: Graph) -> list[bytes]:
    """Return 16 bytes for each output that equal computations have in common, whatever else their graphs compute."""
    known = [_digest(f"input {shape(spec)}") for spec in graph.inputs]
    for operation in graph.operations:
        own = f"{name_of(operation)} {list(map(shape, operation.plan.outputs))} {list(_attributes(operation, ()))}"
        together = _digest(own, *(known[slot] for slot in operation.operands))
        known += [_digest(str(part), together) for part in range(len(operation.plan.outputs))]
    return [known[slot] for slot in graph.outputs]


def _digest(text: str, *parts: bytes) -> bytes:
    return hashlib.blake2b(text.encode() + b"".join(parts), digest_size=16).digest()


def shape(spec: Spec) -> str:
    """Return a spec as XLA writes a shape, `f32[2,3]`; an order of memory that is not row-major follows,
    `f32[2,3]{0,1}`.
    """
    text = f"{dtypes.SHORT_NAMES[spec.dtype]}[{','.join(map(str, spec.size))}]"
    if spec.sharding is not None:
        return f"{shape(spec.plain)}@{spec.sharding}"
    order = Geometry(spec.size, spec.stride).memory_order()
    if order == tuple(range(len(spec.size))):
        return text
    return f"{text}{{{','.join(map(str, reversed(order)))}}}"


def name_of(operation: Operation) -> str:
    """Return the operator without its overload, `aten::sum`."""
    op = operation.plan.op
    # The rule of a decomposed operator belongs to a pair: the operator, and a number of its own.
    schema = schema_if_any(op[0] if isinstance(op, tuple) else op)
    return str(op) if schema is None else str(schema.name)


def _filled_by(operation: Operation) -> range:
    return range(operation.first_output, operation.first_output + len(operation.plan.outputs))


def _names(graph: Graph) -> list[str]:
    """Return the name of each slot. Names count values and operations, since an operation may fill several slots."""
    names = [str(slot) for slot in range(len(graph.inputs))]
    for count, operation in enumerate(graph.operations, len(names)):
        parts = len(operation.plan.outputs)
        names += [str(count)] if parts == 1 else [f"{count}.{part}" for part in range(parts)]
    return names


def _roots(graph: Graph) -> dict[int, list[int]]:
    roots: dict[int, list[int]] = {}
    for index, slot in enumerate(graph.outputs):
        roots.setdefault(slot, []).append(index)
    return roots


def _root_marks(slots: range, roots: dict[int, list[int]]) -> str:
    parts = [f":{part}" if len(slots) > 1 else "" for part in range(len(slots))]
    return "".join(f", ROOT={i}{part}" for slot, part in zip(slots, parts, strict=True) for i in roots.get(slot, ()))


def _attributes(operation: Operation, numbers: Sequence[object]) -> Iterator[str]:
    """Yield the arguments that are not values of the graph, as `dim=[1]`; those left out of the call are left out
    here.
    """
    plan = operation.plan
    own = numbers[operation.first_number : operation.first_number + len(plan.numbers)] or plan.numbers
    args, kwargs = plan.arguments
    schema = schema_if_any(plan.op)
    if schema is None:
        yield from _view_attributes(args, own)
    else:
        named = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
        for name, value in named.items():
            if value is not None and not _is_operand(value):
                yield f"{name}={_shown(value, own)}"
    if plan.draws:
        yield "random"


def _is_operand(argument: object) -> bool:
    if isinstance(argument, (list, tuple)):
        return bool(argument) and any(_is_operand(element) for element in argument)
    return isinstance(argument, Operand)


def _view_attributes(args: Sequence[object], numbers: Sequence[object]) -> Iterator[str]:
    """Yield the attributes of a view operation: the view's geometry, and the number where the view begins, if any.

    The last geometry is the view's. The first is the storage's and left out, because the shape shows it.
    """
    geometries = [argument for argument in args if isinstance(argument, Geometry)]
    for view in geometries[-1:]:
        offset = _shown(args[-1], numbers) if isinstance(args[-1], Number) else view.offset
        yield f"size={view.size}, stride={view.stride}, storage_offset={offset}"


def _shown(argument: object, numbers: Sequence[object]) -> str:
    if isinstance(argument, Number):
        number = numbers[argument.index]
        return number.__name__ if isinstance(number, type) else repr(number)
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(_shown(element, numbers) for element in argument)}]"
    return str(argument)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
