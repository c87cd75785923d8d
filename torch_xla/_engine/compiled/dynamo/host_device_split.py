"""Split an FX graph: host work before, one device operation, host work after, and writes to arguments."""

import hashlib
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...compat.names.torch import HigherOrderOperator, OpOverload, pytree, schema_of
from ...compat.names.torch_dynamo import outside_of_traces
from ...dispatch.op_schema import WRITES_UNDECLARED
from ...lowering.fx_graphs import interpreter
from .shared_results import shared_views

aten = torch.ops.aten


class Unsplittable(Exception):
    """Why a graph cannot become one operation."""


@dataclass
class Parts:
    """The parts of a graph. Nodes are those of the original graph, and name its values."""

    placeholders: list[Node]
    before: list[Node] = field(default_factory=list)
    device: list[Node] = field(default_factory=list)
    after: list[Node] = field(default_factory=list)
    writes: list[tuple[Node, Node]] = field(default_factory=list)  # (argument, what is written to it)
    results: Any = None
    inputs: list[Node] = field(default_factory=list)  # of the device's part
    scalars: list[list[Node]] = field(default_factory=list)  # other inputs: from the host, each list as one array
    outputs: list[Node] = field(default_factory=list)
    module: GraphModule | None = None  # the device's part
    name: str = ""


def split(module: GraphModule, kind: str, visible: int | None = 0) -> Parts:
    """Return the parts of `module`. Raises `Unsplittable` with the reason.

    The user sees the first `visible` results, or all. If some share memory on the CPU, they share it here.
    """
    parts = Parts([node for node in module.graph.nodes if node.op == "placeholder"])
    on_device: set[Node] = set()
    late: set[Node] = set()
    for node in module.graph.nodes:
        if node.op == "output":
            # A value that was written to an argument is returned as that argument.
            parts.results = torch.fx.node.map_arg(node.args[0], lambda each: each.args[0] if _is_write(each) else each)
        elif node.op == "call_function":
            _sort(node, parts, on_device, late)
        elif node.op not in ("placeholder", "get_attr"):
            raise Unsplittable(f"a node of kind {node.op}")
    written = {argument for argument, _ in parts.writes}
    if any(written.intersection(node.all_input_nodes) for node in parts.after):
        raise Unsplittable("the host reads an argument after it was written to")
    if parts.device:
        views = shared_views(pytree.tree_leaves(parts.results)[:visible], on_device)
        parts.after = views + parts.after
        _find_borders(parts, on_device, set(views))
        parts.module = _extract(module, parts)
        missing = sorted({str(op) for op in interpreter.operators_without_rule(parts.module)})
        if missing:
            raise Unsplittable(f"no rule lowers {', '.join(missing)}")
        parts.name = f"compiled::{kind}_{_fingerprint(parts.module)}"
    return parts


def _sort(node: Node, parts: Parts, on_device: set[Node], late: set[Node]) -> None:
    """Put one call into its part."""
    operands = node.all_input_nodes
    if any(_is_write(each) for each in operands):
        raise Unsplittable("an argument is written to before the end")
    if _is_write(node):
        if operands[1] in late:
            raise Unsplittable("an argument is given a value that was on the host")
        parts.writes.append((operands[0], operands[1]))
        return
    if isinstance(node.target, OpOverload) and (schema_of(node.target).is_mutable or _writes_undeclared(node)):
        raise Unsplittable(f"{node.target} writes to its arguments")
    if isinstance(node.target, HigherOrderOperator) and not (_is_a_check(node) or _is_lowered(node)):
        raise Unsplittable(f"{node.target} is no operator of aten")
    devices = _devices(node)
    if node.meta.get("unbacked_bindings") and "xla" in devices:
        raise Unsplittable(f"the values of its operands decide the size of {node.target}")
    if {"cpu", "xla"} <= devices and (on_device | late).intersection(operands):
        raise Unsplittable(f"{node.target} gives tensors of the host and of the device")
    if node.target is operator.getitem and operands[0] in parts.before:
        parts.before.append(node)  # one of several tensors that the host has
        return
    is_transfer = "xla" not in devices or any("cpu" in _devices(each) and _rank(each) for each in operands)
    if is_transfer and "xla" not in devices and not (on_device | late).intersection(operands):
        parts.before.append(node)
    elif "xla" in devices and is_transfer and not (on_device | late).intersection(operands):
        parts.before.append(node)  # an upload
    elif "xla" not in devices and devices:
        parts.after.append(node)
        late.add(node)
    elif late.intersection(operands):
        if not devices:
            parts.after.append(node)  # a number computed from values on the host
            late.add(node)
            return
        raise Unsplittable(f"{node.target} needs a value that was on the host")
    else:
        parts.device.append(node)
        on_device.add(node)


def _writes_undeclared(node: Node) -> bool:
    """Return whether a node writes to an argument though its schema does not declare it."""
    places = WRITES_UNDECLARED.get(schema_of(node.target).name, ())  # type: ignore[arg-type]
    return any(node.args[place] is not None for place in places)


def _is_write(node: Node) -> bool:
    """Return whether a node represents a write to an argument, which runs at the end."""
    return node.target is aten.copy_.default and node.all_input_nodes[0].op == "placeholder"


def _is_a_check(node: Node) -> bool:
    """Return whether a node only checks values and may raise, as after a factorization; such nodes run on the host."""
    if node.target is not torch.ops.higher_order.with_effects:
        return False
    called = node.args[1]
    return isinstance(called, OpOverload) and not schema_of(called).returns and not schema_of(called).is_mutable


def _is_lowered(node: Node) -> bool:
    """Return whether a node is a loop or branch that runs on the device, with its results."""
    # Flex attention has no gradient, `None`, for a number that its function captured.
    results = [leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if leaf is not None]
    return bool(results and node.target in interpreter.higher_order) and all(
        isinstance(leaf, torch.Tensor) and leaf.device.type == "xla" for leaf in results
    )


def _devices(node: Node) -> set[str]:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}


def _rank(node: Node) -> int:
    value = node.meta.get("val")
    return value.dim() if isinstance(value, torch.Tensor) else 1


def _find_borders(parts: Parts, on_device: set[Node], views: set[Node]) -> None:
    """Find what the device's part takes and gives. The `views` are made of its results."""
    inputs: dict[Node, None] = {}
    for node in parts.device:
        for operand in node.all_input_nodes:
            if operand not in on_device and interpreter.graph_at(operand) is None:
                inputs[operand] = None
    used: dict[Node, None] = {}
    for node in parts.after:
        used.update(dict.fromkeys(node.all_input_nodes))
    written = dict.fromkeys(value for _, value in parts.writes)
    used.update(written)
    torch.fx.node.map_arg(parts.results, lambda node: used.setdefault(node))
    _gather_scalars(inputs, parts)
    parts.outputs = [node for node in used if node in on_device and (node in written or node not in views)]


def _gather_scalars(inputs: dict[Node, None], parts: Parts) -> None:
    # The step counts of an optimizer: one transfer for all of them, not one for each.
    by_dtype: dict[torch.dtype, list[Node]] = {}
    for node in inputs:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0:
            by_dtype.setdefault(value.dtype, []).append(node)
    parts.scalars = [nodes for nodes in by_dtype.values() if len(nodes) > 1]
    gathered = {node for nodes in parts.scalars for node in nodes}
    parts.inputs = [node for node in inputs if node not in gathered]


def _extract(module: GraphModule, parts: Parts) -> GraphModule:
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in parts.inputs:
        copy = graph.placeholder(node.name)
        copy.meta = dict(node.meta)
        copies[node] = copy
    arrays = [graph.placeholder(f"scalars_{number}") for number in range(len(parts.scalars))]
    for nodes, array in zip(parts.scalars, arrays, strict=True):
        dtype = nodes[0].meta["val"].dtype
        array.meta = {"val": torch.empty(len(nodes), dtype=dtype, device="meta")}
        for index, node in enumerate(nodes):
            copies[node] = graph.call_function(aten.select.int, (array, 0, index))
            copies[node].meta = {"val": torch.empty((), dtype=dtype, device="meta")}
    for node in parts.device:
        for taken in node.all_input_nodes:
            if taken not in copies and interpreter.graph_at(taken) is not None:
                copies[taken] = graph.get_attr(str(taken.target))
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in parts.outputs))
    return GraphModule(module, graph)


def _fingerprint(module: GraphModule) -> str:
    # A name derived from what the operation does, equal in every process: program keys contain it.
    text = text_of(module)
    # A function of JAX in it may have a name that holds in this process alone; then so has the graph.
    return hashlib.sha256(text.encode()).hexdigest()[:16] + " at 0x0" * (" at 0x0" in text)


def text_of(module: GraphModule) -> str:
    """Return a text of a graph, equal for graphs that run the same operations in the same order."""
    names: dict[Node, str] = {}
    text: list[str] = []
    for index, node in enumerate(module.graph.nodes):
        names[node] = f"%{index}"
        arguments: Any = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: _Named(names[each]))  # type: ignore[arg-type, return-value]
        text.append(f"{node.op} {_target(node)} {arguments} {_promised(node)}")
    return "\n".join(text)


def _target(node: Node) -> str:
    """Return what a node represents or calls, independent of the names in its graph."""
    if node.op != "get_attr":
        return "" if node.op == "placeholder" else str(node.target)
    inside = interpreter.graph_at(node)
    if inside is not None:
        return f"{{{text_of(inside)}}}"
    with outside_of_traces():
        constant = interpreter.constant_at(node)
    if constant is None:  # which nothing lowers
        return str(node.target)
    return f"{constant.dtype}{constant.shape} {hashlib.sha256(constant.tobytes()).hexdigest()}"


class _Named:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def _promised(node: Node) -> str:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return " ".join(f"{leaf.dtype}{[*leaf.shape, *leaf.stride()]}" for leaf in leaves if isinstance(leaf, torch.Tensor))


def evaluate(nodes: Iterable[Node], values: dict[Node, Any]) -> None:
    """Call the functions of `nodes` on the values in `values`, and add their results."""
    for node in nodes:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        target: Callable[..., Any] = node.target  # type: ignore[assignment]
        values[node] = target(*args, **kwargs)


def results(nested: Any, values: dict[Node, Any]) -> Any:
    """Return the graph's results in their nesting."""
    return torch.fx.node.map_arg(nested, values.__getitem__)


def constants(module: GraphModule, nodes: Sequence[Node]) -> dict[Node, Any]:
    """Return the tensors that belong to the graph itself."""
    return {node: getattr(module, str(node.target)) for node in nodes if node.op == "get_attr"}
