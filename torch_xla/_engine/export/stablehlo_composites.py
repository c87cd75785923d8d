"""Export marked parts of a graph as StableHLO composites."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.tools_common import legalize_graph

from ..lowering.fx_graphs import interpreter
from ..lowering.machinery.composite_names import qualified
from ..lowering.machinery.xla_op_schemas import LIBRARY

MARK = torch.ops.xla.mark_tensor.default
assert LIBRARY is not None


@dataclass
class _Composite:
    """The marks of one composite, each by its position among the inputs or the outputs."""

    name: str
    inputs: dict[int, Node] = field(default_factory=dict)
    outputs: dict[int, Node] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)

    def region(self) -> list[Node]:
        """Return the nodes between the marks, in the order of the graph, without the marks of the inputs."""
        found: set[Node] = set()
        open_nodes = [mark.all_input_nodes[0] for mark in self.outputs.values()]
        stops = set(self.inputs.values())
        while open_nodes:
            node = open_nodes.pop()
            if node not in found and node not in stops and node.op == "call_function":
                found.add(node)
                open_nodes += node.all_input_nodes
        return [node for node in next(iter(self.outputs.values())).graph.nodes if node in found]


def with_composites(module: GraphModule) -> GraphModule:
    """Return `module`, in which each marked part is a single call that lowers to `stablehlo.composite`."""
    while composites := _marked(module):
        # A composite inside another one is the smaller of the two.
        _replace(module, min(composites, key=lambda composite: len(composite.region())))
    return module


def _marked(module: GraphModule) -> list[_Composite]:
    found: dict[tuple[str, str], _Composite] = {}
    for node in module.graph.nodes:
        if node.target is not MARK:
            continue
        name, position, identity, is_input, *rest = node.args[1:]
        composite = found.setdefault((name, identity), _Composite(qualified(name)))
        (composite.inputs if is_input else composite.outputs)[position] = node
        attributes = rest[0] if rest else node.kwargs.get("attr")
        if attributes:
            composite.attributes.update(json.loads(attributes))
    for (name, _), composite in found.items():
        for kind, marks in (("inputs", composite.inputs), ("outputs", composite.outputs)):
            if sorted(marks) != list(range(len(marks))) or not marks:
                raise ValueError(
                    f"the {kind} of composite {name!r} are marked with positions {sorted(marks)}; expected 0, 1, … "
                    f"for all of them. Mark each tensor once, by one call of mark_inputs() and one of mark_outputs()."
                )
    return list(found.values())


def _replace(module: GraphModule, composite: _Composite) -> None:
    region = composite.region()
    inputs = [composite.inputs[position] for position in sorted(composite.inputs)]
    outputs = [composite.outputs[position] for position in sorted(composite.outputs)]
    inner, captured = _extract(module, region, inputs, [mark.all_input_nodes[0] for mark in outputs])
    if interpreter.draws(inner):
        raise NotImplementedError(f"composite {composite.name!r} draws random numbers, which a composite cannot")
    graph = module.graph
    with graph.inserting_before(outputs[0]):
        call = graph.call_function(_caller(composite, inner), (*inputs, *captured))
        for index, mark in enumerate(outputs):
            result = graph.call_function(_item, (call, index))
            result.meta = dict(mark.meta)
            mark.replace_all_uses_with(result)
    for mark in outputs:
        graph.erase_node(mark)
    for mark in inputs:
        mark.replace_all_uses_with(mark.all_input_nodes[0])
        graph.erase_node(mark)
    legalize_graph(module)
    graph = module.graph
    graph.eliminate_dead_code()
    module.recompile()


def _extract(
    module: GraphModule, region: Iterable[Node], inputs: list[Node], outputs: list[Node]
) -> tuple[GraphModule, list[Node]]:
    """Return the region as a graph of its own, and the nodes outside, apart from `inputs`, that it reads."""
    inside = set(region)
    captured = dict.fromkeys(
        each
        for node in (*inside, *outputs)
        for each in node.all_input_nodes
        if each not in inside and each not in inputs
    )
    captured.update(dict.fromkeys(node for node in outputs if node not in inside and node not in inputs))
    for mark in inputs:
        captured.pop(mark, None)
    ordered = [node for node in module.graph.nodes if node in captured]
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in (*inputs, *ordered):
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in region:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return GraphModule(module, graph), ordered


def _item(results: Any, index: int) -> object:
    return results[index]


def _caller(composite: _Composite, inner: GraphModule) -> Callable[..., object]:
    def call(*arrays: Any) -> object:
        if any(not isinstance(n, int) for array in arrays for n in array.shape):
            raise NotImplementedError(
                f"composite {composite.name!r} takes a tensor with a dynamic dimension, for which JAX writes no "
                f"composite. Export with static shapes, or without the marks."
            )
        decomposition = jax.lax.composite(lambda *inputs, **_: interpreter.interpret(inner, inputs, ()), composite.name)
        return decomposition(*arrays, **composite.attributes)

    return call
