"""Trace a function of tensors, and the gradients of its results, in one run of its Python code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..compat.names.torch import pytree
from ..compat.names.torch_dynamo import FunctionalTrace
from ..compiled.dynamo.backend import compile_graph
from ..lowering.fx_graphs import decompositions


@dataclass(frozen=True, slots=True)
class _View:
    """A result that is a view of the input `place`; without size, the input itself."""

    place: int
    geometry: tuple[tuple[int, ...], tuple[int, ...], int] | None

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        base = tensors[self.place]
        if self.geometry is None:
            return base
        size, stride, offset = self.geometry
        return base.as_strided(size, stride, base.storage_offset() + offset)


@dataclass(frozen=True, slots=True)
class _Computed:
    """A result that the graph computes: its output `place`."""

    place: int


class SingleTrace:
    """A function of tensors as two graphs, forward and backward, from one run of the function."""

    def __init__(self, function: Callable[..., object], tensors: Sequence[torch.Tensor]) -> None:
        self._trace = FunctionalTrace()
        self._function = function
        self._leaves: list[Any] = []  # of the result: `_View`, `_Computed`, or what it is
        self._tree: Any = None
        self._differentiable: list[int] = []  # outputs
        self._needed: list[int] = []  # inputs that get gradients
        self._written: list[int] = []  # inputs that the function writes to
        self._outputs = 0
        self._forward_nodes = 0
        self._gives: list[bool] = []  # whether there is a gradient, for each of `_needed`
        joint = self._trace.run(self._run, tensors, decompositions.table())
        forward, backward = self._cut(joint)
        self._forward = compile_graph(forward, [], kind="forward")
        self._backward = None if backward is None else compile_graph(backward, [], kind="backward")
        del self._function, self._trace

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Return the function's result for tensors like those of the trace."""
        if self._backward is not None:
            found = _Differentiated.apply(self, *tensors)
        else:
            with torch.no_grad():
                found = tuple(self._forward(list(tensors)))
        for place, value in zip(self._written, found[self._outputs :], strict=False):
            with torch.no_grad():
                tensors[place].copy_(value)
        return pytree.tree_unflatten([_filled(leaf, tensors, found) for leaf in self._leaves], self._tree)

    def _run(self, *inputs: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Call the function in the trace; return the outputs of the forward graph, and the gradients."""
        trace = self._trace
        results, self._tree = pytree.tree_flatten(self._function(*inputs))
        outputs = self._sort(results, inputs)
        self._outputs = len(outputs)
        self._differentiable = [place for place, each in enumerate(outputs) if each.requires_grad]
        self._written = [place for place, each in enumerate(inputs) if trace.is_written(each)]
        self._needed = [place for place, each in enumerate(inputs) if each.requires_grad]
        plain = [trace.plain(each) for each in (*outputs, *(inputs[place] for place in self._written))]
        self._forward_nodes = trace.position()
        if not self._differentiable or not self._needed:
            return plain, []
        chosen = [outputs[place] for place in self._differentiable]
        tangents = [trace.input(each) for each in chosen]
        wanted = [inputs[place] for place in self._needed]
        gradients = torch.autograd.grad(chosen, wanted, tangents, allow_unused=True)
        self._gives = [each is not None for each in gradients]
        return plain, [trace.plain(each) for each in gradients if each is not None]

    def _sort(self, results: Sequence[object], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Note how each result is made, and return those that the graph computes."""
        outputs: list[torch.Tensor] = []
        places = {id(each): _View(place, None) for place, each in enumerate(inputs)}
        known: dict[int, Any] = dict(places)
        for each in results:
            if not isinstance(each, torch.Tensor) or not self._trace.belongs(each):
                self._leaves.append(each)
                continue
            base = places.get(id(self._trace.base_of(each)))
            if id(each) not in known and base is not None and each.dtype == inputs[base.place].dtype:
                offset = int(each.storage_offset()) - int(inputs[base.place].storage_offset())
                known[id(each)] = _View(base.place, (tuple(each.shape), each.stride(), offset))
            if id(each) not in known:
                known[id(each)] = _Computed(len(outputs))
                outputs.append(each)
            self._leaves.append(known[id(each)])
        return outputs

    def _cut(self, joint: GraphModule) -> tuple[GraphModule, GraphModule | None]:
        """Return the forward graph, with what the backward graph reads as further outputs, and the backward graph."""
        nodes = list(joint.graph.nodes)
        results, gradients = nodes[-1].args[0]
        tangents = len(self._differentiable) if gradients else 0
        inputs = [node for node in nodes if node.op == "placeholder"]
        given = inputs[len(inputs) - tangents :] if tangents else []
        first = self._forward_nodes + tangents
        before = [node for node in nodes[:first] if node not in given]
        needed = _needed_for(gradients, set(before))
        saved = [node for node in before if node in needed]
        kept = [node for node in saved if node.op != "get_attr"]
        forward = _graph(joint, before, [*results, *kept])
        if not gradients:
            return forward, None
        later = [node for node in nodes[first:-1] if node in needed]
        constants = [node for node in saved if node.op == "get_attr"]
        return forward, _graph(joint, [*constants, *later], list(gradients), [*kept, *given])


def _filled(leaf: object, tensors: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> Any:
    if isinstance(leaf, _View):
        return leaf.of(tensors)
    return found[leaf.place] if isinstance(leaf, _Computed) else leaf


def _needed_for(results: Sequence[Node], ends: set[Node]) -> set[Node]:
    """Return the nodes that `results` are computed from, back to those in `ends`."""
    found: set[Node] = set()
    left = list(results)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            if node not in ends:
                left += node.all_input_nodes
    return found


def _graph(
    module: GraphModule, nodes: Sequence[Node], outputs: Sequence[Node], inputs: Sequence[Node] = ()
) -> GraphModule:
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    graph.eliminate_dead_code()
    return GraphModule(module, graph)


class _Once(torch.autograd.Function):
    """Return tensors whose gradients are refused."""

    @staticmethod
    def forward(ctx: object, _: torch.Tensor, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the values."""
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: object, *_: torch.Tensor) -> object:
        """Raise `RuntimeError`."""
        raise RuntimeError(
            "a pure function (assume_pure, PureModule) has gradients, but these have none: its backward direction was "
            "traced once, as the function was. Call the function itself where gradients of gradients are needed."
        )


class _Differentiated(torch.autograd.Function):
    """Run the two graphs of a `SingleTrace`."""

    @staticmethod
    def forward(ctx: Any, single: SingleTrace, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs; keep what the backward graph reads."""
        found = tuple(single._forward(list(tensors)))
        results = found[: single._outputs + len(single._written)]
        ctx.save_for_backward(*found[len(results) :])
        ctx.single, ctx.count = single, len(tensors)
        fixed = set(range(len(results))).difference(single._differentiable)
        ctx.mark_non_differentiable(*(results[place] for place in fixed))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of each tensor."""
        single = ctx.single
        tangents = [gradients[place] for place in single._differentiable]
        with torch.no_grad():
            values = single._backward([*ctx.saved_tensors, *tangents])
        if torch.is_grad_enabled():
            values = _Once.apply(torch.empty(0, requires_grad=True), *values)
        made, found = iter(values), [None] * ctx.count
        for place, gives in zip(single._needed, single._gives, strict=True):
            found[place] = next(made) if gives else None
        return None, *found
