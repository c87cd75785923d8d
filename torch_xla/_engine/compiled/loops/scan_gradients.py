"""Differentiate a scan: cut the gradient of its body into the forward and the backward part of an iteration."""

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.fx import Graph, GraphModule, Node

from ...compat.names.torch_dynamo import aot_export_joint_simple
from ...lowering.control_flow.loops import graph_scan, graph_while
from ...lowering.fx_graphs import decompositions, interpreter
from .closure_captures import Tracing
from .loop_bodies import pure_graph, without_checks
from .nested_loops import Whole, by_itself

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Roles:
    """How many of the body's tensors are carried, slices of `xs`, and the same in every round, in this order."""

    carried: int
    slices: int
    constant: int

    def role(self, place: int) -> str:
        """Return the role of the body's input `place`."""
        if place < self.carried:
            return "carried"
        return "slice" if place < self.carried + self.slices else "constant"


@dataclass
class _Saved:
    """Values of the forward direction that the backward direction reads, grouped by origin."""

    stacked: list[Node] = field(default_factory=list)  # of each round its own
    slices: list[Node] = field(default_factory=list)  # inputs of each round, which `xs` holds already
    constants: list[Node] = field(default_factory=list)  # inputs that are the same in every round
    invariants: list[Node] = field(default_factory=list)  # computed of those alone


class Examples:
    """Tensors without memory in the shapes of a scan's inputs, and of the inputs of one round."""

    def __init__(self, roles: Roles, tensors: Sequence[torch.Tensor]) -> None:
        self.roles = roles
        self.stage = Tracing()
        self.whole = [self.stage.describe(each) for each in tensors]
        self.length = int(tensors[roles.carried].shape[0])
        self.paths: list[int] = []  # of each result of the body: the inputs that its gradient flows to, as bits

    def in_a_round(self, place: int) -> torch.Tensor:
        """Return the body's input for the input `place` of the scan."""
        example = self.whole[place]
        return self.stage.describe_slice(example) if self.roles.role(place) == "slice" else example

    def round(self) -> list[torch.Tensor]:
        """Return the body's inputs."""
        return [self.in_a_round(place) for place in range(len(self.whole))]

    def followed(self, body: Callable[..., Any], needed: Sequence[bool]) -> tuple[list[bool], list[bool]]:
        """Return which inputs of the body need gradients, and which results have them, if the inputs in `needed` do.

        A carried input needs a gradient if the result that replaces it has one. Carried values that depend on no such
        input (a count, running statistics) are carried without a gradient, as in a loop of single rounds.
        """
        needed, carried = list(needed), self.roles.carried
        while True:
            inputs = [each.requires_grad_(need) for each, need in zip(self.round(), needed, strict=True)]
            with by_itself(), torch.enable_grad(), self.stage.mode:
                results = body(*inputs)
                given = [each.requires_grad for each in results]
            follows = [need or gives for need, gives in zip(needed[:carried], given, strict=False)]
            if follows == needed[:carried]:
                with by_itself():
                    self.paths = paths_of(results, inputs)
                return needed, given
            needed[:carried] = follows

    def stacked(self, value: torch.Tensor) -> torch.Tensor:
        """Return `value` of each round, stacked."""
        with by_itself(), self.stage.mode:
            return torch.empty((self.length, *value.shape), dtype=value.dtype, device=value.device)

    def around(self, body: GraphModule, outputs: Sequence[Node], reverse: bool) -> GraphModule:
        """Return the graph of a scan with this body, whose outputs these are."""
        build = _Builder(body)
        roles = self.roles
        inputs = [build.input(f"input_{place}", each) for place, each in enumerate(self.whole)]
        carried, rest = inputs[: roles.carried], inputs[roles.carried :]
        values = [node.meta["val"] for node in outputs]
        values = values[: roles.carried] + [self.stacked(value) for value in values[roles.carried :]]
        taken = (carried, rest[: roles.slices], tuple(rest[roles.slices :]), self.length, reverse)
        return build.module(build.loop(graph_scan, taken, values))


def draws_of(body: GraphModule) -> list[object]:
    """Return the operators of a body that draw random numbers, in order."""
    return [node.target for node in body.graph.nodes if interpreter.is_random(body, node)]


def without_gradients(
    body: Callable[..., object], roles: Roles, tensors: Sequence[torch.Tensor], reverse: bool
) -> Whole:
    """Return a scan as a function of its tensors."""
    examples = Examples(roles, tensors)
    graph = pure_graph(body, examples.round())
    return Whole(examples.around(graph, _output(graph), reverse), kind="scan")


class Differentiated:
    """Both directions of a scan with a body that can be differentiated.

    `forward` takes the tensors that are carried, scanned over and constant, and gives what is carried last, the stacked
    outputs, then what is saved. `backward` takes gradients of the differentiable outputs and what is saved.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        examples: Examples,
        needed: Sequence[bool],
        given: Sequence[bool],
        partition: Callable[..., Any],
        reverse: bool = False,
    ) -> None:
        self.roles = roles = examples.roles
        self.needed = tuple(needed)
        self.differentiable = tuple(place for place, gives in enumerate(given) if gives)
        self.outputs = len(given)
        self.body, self.partition, self.reverse = body, partition, reverse
        self.gradient: Any = None  # what gives gradients of gradients, once they are asked for
        self._examples = examples
        self._reached: dict[frozenset[int], tuple[bool, ...]] = {}
        inputs = [each.requires_grad_(need) for each, need in zip(examples.round(), needed, strict=True)]
        with by_itself():
            joint: Any = aot_export_joint_simple(
                without_checks(body), tuple(inputs), trace_joint=True, decompositions=decompositions.table()
            )
            tangents = [node.meta["val"] for node in joint.graph.nodes if node.name.startswith("tangents_")]
            once, back = partition(joint, (inputs, tangents), num_fwd_outputs=self.outputs)
        self.draws = draws_of(once)
        self._saved = _sorted_out(once, self.outputs, roles)
        kept = [*_output(once)[: self.outputs], *self._saved.stacked]
        self.forward = Whole(self._examples.around(_with_outputs(once, kept), kept, reverse), kind="scan_forward")
        self._back = Whole(self._backward(once, back), kind="scan_backward")

    def backward(
        self, grads: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return gradients by what needs them, from those of all outputs, from what `forward` gave besides, and its
        inputs.
        """
        carried = [place for place in range(self.roles.carried) if self.needed[place]]
        outside = [place for place in self.differentiable if place >= self.roles.carried]
        slices = [inputs[_place(node)] for node in self._saved.slices]
        constants = inputs[self.roles.carried + self.roles.slices :]
        return self._back([*(grads[place] for place in (*carried, *outside)), *saved, *slices, *constants])

    def reached(self, outputs: frozenset[int]) -> tuple[bool, ...]:
        """Return the inputs to which the gradients of these outputs flow; a round gives the others no gradient."""
        if outputs not in self._reached:
            examples = self._examples
            found = _flow(examples.paths, self.roles.carried, examples.length, outputs)
            self._reached[outputs] = tuple(bool(found >> place & 1) for place in range(len(self.needed)))
        return self._reached[outputs]

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
        values = {place: self._examples.in_a_round(place) for place in wanted}
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
        """Return the whole backward direction: gradients start as given or at zero, and the rounds go from last to
        first.
        """
        carried, slices, constants, outside = places
        roles, saved = self.roles, self._saved
        build = _Builder(body)
        values = [node.meta["val"] for node in _output(once)]
        last = [build.input(f"grad_{place}", self._examples.whole[place]) for place in carried]
        stacked = [build.input(f"grad_{place}", self._examples.stacked(values[place])) for place in outside]
        kept = [
            build.input(f"saved_{n}", self._examples.stacked(node.meta["val"])) for n, node in enumerate(saved.stacked)
        ]
        kept += [build.input(f"slices_{n}", self._examples.whole[_place(node)]) for n, node in enumerate(saved.slices)]
        first = roles.carried + roles.slices
        every = {
            place: build.input(f"constant_{place}", self._examples.whole[place])
            for place in range(first, first + roles.constant)
        }
        copies: dict[Node, Node] = {}
        for node in once.graph.nodes:
            if node.op == "placeholder" and _place(node) in every:
                copies[node] = every[_place(node)]
        for node in _needed_for(once, saved.invariants):
            copies[node] = (
                build.constant(once, node) if node.op == "get_attr" else build.graph.node_copy(node, copies.__getitem__)
            )
        start = [*last, *(_zeros(build.graph, self._examples.whole[place]) for place in constants)]
        additional = tuple(copies[node] for node in (*saved.constants, *saved.invariants))
        shapes = [self._examples.whole[place] for place in (*carried, *constants, *slices)]
        taken = (start, [*kept, *stacked], additional, self._examples.length, not self.reverse)
        results = build.loop(graph_scan, taken, shapes)
        order = {place: node for place, node in zip((*carried, *constants, *slices), results, strict=True)}
        return build.module([order[place] for place in sorted(order)])


def paths_of(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[int]:
    """Return for each result, as bits, the inputs to which autograd has a path from it."""
    edges = [get_gradient_edge(each) if each.requires_grad else None for each in (*inputs, *results)]
    known: dict[Any, int] = {
        _key(edge.node, 0): 1 << place for place, edge in enumerate(edges[: len(inputs)]) if edge is not None
    }
    left = [_key(*edge) for edge in edges[len(inputs) :] if edge is not None]
    while left:
        node, number = left[-1]
        after = [_key(*edge) for edge in _after(node, number)]
        missing = [each for each in after if each not in known] if (node, number) not in known else []
        if not missing:
            left.pop()
            if (node, number) not in known:
                known[node, number] = functools.reduce(operator.or_, map(known.__getitem__, after), 0)
        left += missing
    return [0 if edge is None else known[_key(*edge)] for edge in edges[len(inputs) :]]


def _flow(paths: Sequence[int], carried: int, length: int, outputs: frozenset[int]) -> int:
    """Return, as bits, the inputs that the gradients of these outputs reach in `length` rounds."""
    if not length:
        return -1  # without a round, usage is unknown
    first = (1 << carried) - 1
    outside = [path for place, path in enumerate(paths) if place >= carried and place in outputs]
    others = 0
    rounds = [sum(1 << place for place in outputs if place < carried)]  # what is carried, from the last one on
    while len(rounds) <= length:
        taken = [path for place, path in enumerate(paths[:carried]) if rounds[-1] >> place & 1]
        flows = functools.reduce(operator.or_, [*outside, *taken], 0)
        others |= flows & ~first
        if flows & first in rounds:
            start = rounds.index(flows & first)  # and so on in turn
            return others | rounds[start + (length - start) % (len(rounds) - start)]
        rounds.append(flows & first)
    return others | rounds[-1]


def _key(node: object, number: int, *_: object) -> tuple[object, int]:
    """Return the key under which gradients of a node are tracked: for a scan, one key for each result."""
    return node, number if isinstance(getattr(node, "loop", None), Differentiated) else 0


def _after(node: Any, number: int) -> list[tuple[object, int]]:
    """Return the nodes to which a gradient of a result of `node` flows."""
    edges = node.next_functions
    loop = getattr(node, "loop", None)
    if isinstance(loop, Differentiated):
        edges = itertools.compress(edges, loop.reached(frozenset((number,))))
    return [edge for edge in edges if edge[0] is not None]


class _Builder:
    """A graph around one loop."""

    def __init__(self, body: GraphModule, condition: GraphModule | None = None) -> None:
        self._root = torch.nn.Module()
        self._root.body = body
        self._bodies = ["body"]
        if condition is not None:
            self._root.condition = condition
            self._bodies = ["condition", "body"]
        self.graph = Graph()

    def input(self, name: str, value: torch.Tensor) -> Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def constant(self, module: GraphModule, node: Node) -> Node:
        name = f"constant_{node.target}"
        setattr(self._root, name, getattr(module, str(node.target)))
        return self.graph.get_attr(name)

    def loop(self, kind: Any, arguments: tuple[Any, ...], values: Sequence[torch.Tensor]) -> list[Node]:
        call = self.graph.call_function(kind, (*map(self.graph.get_attr, self._bodies), *arguments))
        call.meta["val"] = tuple(values)
        results = [self.graph.call_function(operator.getitem, (call, place)) for place in range(len(values))]
        for node, value in zip(results, values, strict=True):
            node.meta["val"] = value
        return results

    def module(self, outputs: Sequence[Node]) -> GraphModule:
        self.graph.output(tuple(outputs))
        return GraphModule(self._root, self.graph)


def around_while(condition: GraphModule, body: GraphModule, carried: int) -> GraphModule:
    """Return the graph of a while loop. Its inputs are the carried values, then the values equal in every round."""
    build = _Builder(body, condition)
    given = [node.meta["val"] for node in body.graph.nodes if node.op == "placeholder"]
    inputs = [build.input(f"input_{place}", value) for place, value in enumerate(given)]
    return build.module(build.loop(graph_while, (inputs[:carried], tuple(inputs[carried:])), given[:carried]))


def _output(module: GraphModule) -> list[Any]:
    return list(next(node for node in module.graph.nodes if node.op == "output").args[0])


def _place(placeholder: Node) -> int:
    """Return the position of an input of the body, which its name carries."""
    return int(placeholder.name.removeprefix("primals_")) - 1


def _sorted_out(once: GraphModule, outputs: int, roles: Roles) -> _Saved:
    saved = _Saved()
    varying: set[Node] = set()
    for node in once.graph.nodes:
        if node.op == "placeholder":
            if roles.role(_place(node)) != "constant":
                varying.add(node)
        elif varying.intersection(node.all_input_nodes) or interpreter.is_random(once, node):
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
        if node not in found and node.op in ("call_function", "get_attr"):
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
