"""The gradient of a scan: the body's graph with its gradient, cut into what each direction computes in a round."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..lowering import decompositions, fx
from ..lowering.control_flow.loops import reverse_scan
from ..private import torch as private
from ..private.dynamo import aot_export_joint_simple
from .backend import compile_whole
from .captures import Stage

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Roles:
    """How many of the body's tensors are carried, slices of `xs`, and the same in every round, in this order."""

    carried: int
    slices: int
    constant: int

    def role(self, place: int) -> str:
        """What the input `place` of the body is."""
        if place < self.carried:
            return "carried"
        return "slice" if place < self.carried + self.slices else "constant"


@dataclass
class _Saved:
    """What the backward direction reads of the forward one, by where it comes from."""

    stacked: list[Node] = field(default_factory=list)  # of each round its own
    slices: list[Node] = field(default_factory=list)  # inputs of each round, which lie in `xs` already
    constants: list[Node] = field(default_factory=list)  # inputs that are the same in every round
    invariants: list[Node] = field(default_factory=list)  # computed of those alone


class Differentiated:
    """Both directions of a scan with a body that can be differentiated.

    `forward` takes the tensors that are carried, scanned over and constant, and gives what is carried last, the stacked
    outputs, then what is saved. `backward` takes gradients of the differentiable outputs and what is saved.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        roles: Roles,
        examples: Sequence[torch.Tensor],
        needed: Sequence[bool],
        partition: Callable[..., Any],
    ) -> None:
        self.roles = roles
        self.needed = tuple(needed)
        self.length = examples[roles.carried].shape[0]
        self._stage = Stage()
        self._examples = [self._stage.describe(each) for each in examples]
        inputs = [self._in_a_round(place, each) for place, each in enumerate(self._examples)]
        inputs = [each.requires_grad_(need) for each, need in zip(inputs, needed, strict=True)]
        with torch.enable_grad(), self._stage.mode:
            outputs = body(*inputs)
        self.differentiable = tuple(place for place, each in enumerate(outputs) if each.requires_grad)
        self.outputs = len(outputs)
        joint: Any = aot_export_joint_simple(
            body, tuple(inputs), trace_joint=True, decompositions=decompositions.table()
        )
        tangents = [node.meta["val"] for node in joint.graph.nodes if node.name.startswith("tangents_")]
        once, back = partition(joint, (inputs, tangents), num_fwd_outputs=self.outputs)
        self._saved = _sorted_out(once, self.outputs, roles)
        self.forward = compile_whole(self._forward(once), kind="scan_forward")
        self.backward = compile_whole(self._backward(once, back), kind="scan_backward")

    def to_save(self, tensors: Sequence[torch.Tensor], saved: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What `backward` takes besides gradients: of the inputs what it reads, and what `forward` gave for it."""
        slices = [tensors[_place(node)] for node in self._saved.slices]
        return [*saved, *slices, *tensors[self.roles.carried + self.roles.slices :]]

    def _in_a_round(self, place: int, example: torch.Tensor) -> torch.Tensor:
        if self.roles.role(place) != "slice":
            return example
        with self._stage.mode:
            return torch.empty_strided(
                example.shape[1:], example.stride()[1:], dtype=example.dtype, device=example.device
            )

    def _stacked(self, value: torch.Tensor) -> torch.Tensor:
        with self._stage.mode:
            return torch.empty((self.length, *value.shape), dtype=value.dtype, device=value.device)

    def _forward(self, once: GraphModule) -> GraphModule:
        outputs = [*_output(once)[: self.outputs], *self._saved.stacked]
        body = _with_outputs(once, outputs)
        build = _Builder(body)
        roles = self.roles
        inputs = [build.input(f"input_{place}", each) for place, each in enumerate(self._examples)]
        carried, rest = inputs[: roles.carried], inputs[roles.carried :]
        values = [node.meta["val"] for node in outputs]
        values = values[: roles.carried] + [self._stacked(value) for value in values[roles.carried :]]
        results = build.loop(private.scan, (carried, rest[: roles.slices], tuple(rest[roles.slices :])), values)
        return build.module(results)

    def _backward(self, once: GraphModule, back: GraphModule) -> GraphModule:
        roles, saved = self.roles, self._saved
        grads = _output(back)
        wanted = [place for place, need in enumerate(self.needed) if need]
        carried = [place for place in wanted if roles.role(place) == "carried"]
        slices = [place for place in wanted if roles.role(place) == "slice"]
        constants = [place for place in wanted if roles.role(place) == "constant"]
        outside = [place for place in self.differentiable if place >= roles.carried]
        # The body: gradients so far, then what each round has of its own, then what all have.
        graph = Graph()
        known: dict[str, Node] = {}
        so_far = [graph.placeholder(f"so_far_{place}") for place in (*carried, *constants)]
        values = {place: self._in_a_round(place, self._examples[place]) for place in wanted}
        for place, node in zip((*carried, *constants), so_far, strict=True):
            node.meta["val"] = values[place]
        for source in (*saved.stacked, *saved.slices):
            known[source.name] = _copied_input(graph, source)
        once_outputs = _output(once)
        incoming = {place: graph.placeholder(f"grad_{place}") for place in outside}
        for place, node in incoming.items():
            node.meta["val"] = once_outputs[place].meta["val"]
        for source in (*saved.constants, *saved.invariants):
            known[source.name] = _copied_input(graph, source)
        by_place = {**dict(zip(carried, so_far, strict=False)), **incoming}
        tangents = iter(self.differentiable)
        copies: dict[Node, Node] = {}
        for node in back.graph.nodes:
            if node.op == "placeholder":
                copies[node] = known[node.name] if node.name in known else by_place[next(tangents)]
            elif node.op != "output":
                copies[node] = graph.node_copy(node, copies.__getitem__)
        found = {place: copies[grads[place]] if grads[place] is not None else None for place in wanted}
        results = [found[place] or _zeros(graph, values[place]) for place in carried]
        for place, total in zip(constants, so_far[len(carried) :], strict=True):
            results.append(_sum(graph, total, found[place]))
        results += [found[place] or _zeros(graph, values[place]) for place in slices]
        graph.output(tuple(results))
        return self._around(GraphModule(back, graph), once, (carried, slices, constants, outside))

    def _around(self, body: GraphModule, once: GraphModule, places: tuple[list[int], ...]) -> GraphModule:
        """The whole backward direction: gradients start as given or at zero, and the rounds go from last to first."""
        carried, slices, constants, outside = places
        roles, saved = self.roles, self._saved
        build = _Builder(body)
        values = [node.meta["val"] for node in _output(once)]
        last = [build.input(f"grad_{place}", self._examples[place]) for place in carried]
        stacked = [build.input(f"grad_{place}", self._stacked(values[place])) for place in outside]
        kept = [build.input(f"saved_{n}", self._stacked(node.meta["val"])) for n, node in enumerate(saved.stacked)]
        kept += [build.input(f"slices_{n}", self._examples[_place(node)]) for n, node in enumerate(saved.slices)]
        first = roles.carried + roles.slices
        every = {
            place: build.input(f"constant_{place}", self._examples[place])
            for place in range(first, first + roles.constant)
        }
        copies: dict[Node, Node] = {}
        for node in once.graph.nodes:
            if node.op == "placeholder" and _place(node) in every:
                copies[node] = every[_place(node)]
        for node in _needed_for(once, saved.invariants):
            copies[node] = build.graph.node_copy(node, copies.__getitem__)
        start = [*last, *(_zeros(build.graph, self._examples[place]) for place in constants)]
        additional = tuple(copies[node] for node in (*saved.constants, *saved.invariants))
        shapes = [self._examples[place] for place in (*carried, *constants, *slices)]
        results = build.loop(reverse_scan, (start, [*kept, *stacked], additional, self.length), shapes)
        order = {place: node for place, node in zip((*carried, *constants, *slices), results, strict=True)}
        return build.module([order[place] for place in sorted(order)])


class _Builder:
    """A graph around one loop."""

    def __init__(self, body: GraphModule) -> None:
        self._root = torch.nn.Module()
        self._root.body = body
        self.graph = Graph()

    def input(self, name: str, value: torch.Tensor) -> Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def loop(self, kind: Any, arguments: tuple[Any, ...], values: Sequence[torch.Tensor]) -> list[Node]:
        call = self.graph.call_function(kind, (self.graph.get_attr("body"), *arguments))
        call.meta["val"] = tuple(values)
        results = [self.graph.call_function(operator.getitem, (call, place)) for place in range(len(values))]
        for node, value in zip(results, values, strict=True):
            node.meta["val"] = value
        return results

    def module(self, outputs: Sequence[Node]) -> GraphModule:
        self.graph.output(tuple(outputs))
        return GraphModule(self._root, self.graph)


def _output(module: GraphModule) -> list[Any]:
    return list(next(node for node in module.graph.nodes if node.op == "output").args[0])


def _place(placeholder: Node) -> int:
    """The position of an input of the body, which its name carries."""
    return int(placeholder.name.removeprefix("primals_")) - 1


def _sorted_out(once: GraphModule, outputs: int, roles: Roles) -> _Saved:
    saved = _Saved()
    varying: set[Node] = set()
    for node in once.graph.nodes:
        if node.op == "placeholder":
            if roles.role(_place(node)) != "constant":
                varying.add(node)
        elif varying.intersection(node.all_input_nodes) or fx.is_random(once, node):
            varying.add(node)
    for node in dict.fromkeys(_output(once)[outputs:]):
        if node.op == "placeholder":
            kind = roles.role(_place(node))
            {"carried": saved.stacked, "slice": saved.slices, "constant": saved.constants}[kind].append(node)
        else:
            (saved.stacked if node in varying else saved.invariants).append(node)
    return saved


def _needed_for(module: GraphModule, targets: Sequence[Node]) -> list[Node]:
    found: set[Node] = set()
    left = list(targets)
    while left:
        node = left.pop()
        if node not in found and node.op == "call_function":
            found.add(node)
            left += node.all_input_nodes
    return [node for node in module.graph.nodes if node in found]


def _with_outputs(module: GraphModule, outputs: Sequence[Node]) -> GraphModule:
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in module.graph.nodes:
        if node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return GraphModule(module, graph)


def _copied_input(graph: Graph, source: Node) -> Node:
    node = graph.placeholder(source.name)
    node.meta["val"] = source.meta["val"]
    return node


def _zeros(graph: Graph, like: torch.Tensor) -> Node:
    node = graph.call_function(aten.full.default, (list(like.shape), 0), {"dtype": like.dtype, "device": like.device})
    node.meta["val"] = like
    return node


def _sum(graph: Graph, total: Node, more: Node | None) -> Node:
    if more is None:
        return total
    node = graph.call_function(aten.add.Tensor, (total, more))
    node.meta["val"] = total.meta["val"]
    return node
