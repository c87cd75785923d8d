"""Save a graph as JSON and load it: operators by name, so that only PyTorch's own can run."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...compat.names.torch import OpOverload
from ...dispatch.op_schema import resolve
from ...ir.call_plan import Number, Operand, Plan
from ...ir.graph import Graph, Operation
from ...ir.value_spec import Spec, spec_of
from ...ir.view.geometry import Geometry
from ...lowering.machinery.barrier import BARRIER
from ...lowering.views.storage_access import READ, WRITE

# Operators that are not PyTorch's, and the same in every process.
_OURS = (READ, WRITE, BARRIER)
_NUMBERS: dict[str, type] = {"int": int, "float": float}
_OF_TORCH = (torch.dtype, torch.memory_format, torch.layout)


class Opaque(str):
    """The name of an operator whose arguments a file does not hold: it can be named, and not be run."""


def encode(graph: Graph) -> dict[str, Any]:
    """Return the graph as lists, dicts, strings and numbers. Arguments that have no such form are left out."""
    return {
        "inputs": [_encoded_spec(spec) for spec in graph.inputs],
        "operations": [_encoded_operation(operation) for operation in graph.operations],
        "outputs": list(graph.outputs),
    }


def _encoded_operation(operation: Operation) -> dict[str, object]:
    plan = operation.plan
    args, kwargs = plan.arguments
    arguments: dict[str, Any] | None
    try:
        _name_for_good(plan)
        arguments = {
            "positional": [_encoded(argument) for argument in args],
            "named": {name: _encoded(argument) for name, argument in kwargs.items()},
        }
    except TypeError:
        arguments = None
    return {
        "op": name_of_plan(plan),
        "arguments": arguments,
        "reads": list(operation.operands),
        "numbers": [kind.__name__ for kind in plan.numbers],
        "results": [_encoded_spec(spec) for spec in plan.outputs],
        "structure": list(plan.structure),
        "compute_dtype": _encoded(plan.compute_dtype),
        "random": plan.draws,
    }


def decode(data: dict[str, Any]) -> Graph:
    """Return the graph that `encode` was given. Raises `ValueError` for other data, such as another PyTorch's."""
    inputs = tuple(_decoded_spec(spec) for spec in data["inputs"])
    specs = list(inputs)
    operations: list[Operation] = []
    numbers = draws = 0
    for position, entry in enumerate(data["operations"]):
        outputs = tuple(_decoded_spec(spec) for spec in entry["results"])
        kinds = tuple(_NUMBERS[name] for name in entry["numbers"])
        reads = tuple(entry["reads"])
        if any(not 0 <= slot < len(specs) for slot in reads):
            raise ValueError(f"operation {position} ({entry['op']}) reads what no operation before it computes")
        arguments = entry["arguments"] or {"positional": [], "named": {}}
        plan = Plan(
            _operator(entry["op"]) if entry["arguments"] is not None else Opaque(entry["op"]),
            (
                tuple(_decoded(argument) for argument in arguments["positional"]),
                {name: _decoded(argument) for name, argument in arguments["named"].items()},
            ),
            tuple(specs[slot] for slot in reads),
            kinds,
            outputs,
            tuple(entry["structure"]),
            _decoded(entry["compute_dtype"]),
            int(entry["random"]),
        )
        operations.append(Operation(plan, reads, numbers, draws if plan.draws else -1, len(specs), position))
        specs.extend(outputs)
        numbers += len(kinds)
        draws += plan.draws
    return Graph(inputs, tuple(operations), tuple(data["outputs"]))


def name_of_plan(plan: Plan) -> str:
    """Return the operator with its overload, `aten::sum.dim_IntList`."""
    op = _operator_of(plan)
    return str(op.name()) if isinstance(op, OpOverload) else str(op)


def _operator_of(plan: Plan) -> object:
    return plan.op[0] if isinstance(plan.op, tuple) else plan.op


def _name_for_good(plan: Plan) -> None:
    op = _operator_of(plan)
    if not isinstance(op, OpOverload) and op not in _OURS:
        raise TypeError(f"{op} exists in this process alone, such as a compiled graph or a function of JAX")


def _operator(name: str) -> object:
    if name in _OURS:
        return name
    try:
        return resolve(name)
    except AttributeError as error:
        raise ValueError(f"this PyTorch, {torch.__version__}, has no operator {name}") from error


def _encoded_spec(spec: Spec) -> list[Sequence[object]]:
    return [list(spec.size), list(spec.stride), str(spec.dtype)]


def _decoded_spec(data: list[Any]) -> Spec:
    size, stride, dtype = data
    return spec_of(tuple(size), tuple(stride), _of_torch(dtype))


def _of_torch(name: str) -> Any:
    value = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(value, _OF_TORCH):
        raise ValueError(f"{name!r} is no dtype of this PyTorch, {torch.__version__}")
    return value


def _encoded(argument: object) -> object:
    """Encode for JSON, which has lists, strings, finite numbers, truth values and null; the rest becomes a tagged
    dict.
    """
    if argument is None or isinstance(argument, (bool, str, int)):
        return argument
    if isinstance(argument, float):
        return argument if math.isfinite(argument) else {"float": repr(argument)}
    if isinstance(argument, complex):
        return {"complex": [_encoded(argument.real), _encoded(argument.imag)]}
    if isinstance(argument, Operand):
        return {"operand": argument.index}
    if isinstance(argument, Number):
        return {"number": argument.index}
    if isinstance(argument, _OF_TORCH):
        return {"torch": str(argument)}
    if isinstance(argument, Geometry):
        return {"geometry": [list(argument.size), list(argument.stride), argument.offset]}
    if isinstance(argument, (list, tuple)):
        return [_encoded(element) for element in argument]
    raise TypeError(f"an argument {argument!r} of type {type(argument).__name__} cannot be written to a file")


def _decoded(data: object) -> Any:
    if isinstance(data, list):
        return [_decoded(element) for element in data]
    if not isinstance(data, dict):
        return data
    ((kind, value),) = data.items()
    match kind:
        case "float":
            return float(value)
        case "complex":
            return complex(*map(_decoded, value))
        case "operand":
            return Operand(value)
        case "number":
            return Number(value)
        case "torch":
            return _of_torch(value)
        case "geometry":
            return Geometry(tuple(value[0]), tuple(value[1]), value[2])
    raise ValueError(f"an argument of a kind that is not known here: {kind!r}")
