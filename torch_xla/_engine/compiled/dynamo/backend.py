"""Compile the graphs of `torch.compile(backend="openxla")`. Imported at the first compilation: it imports Dynamo."""

import functools
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from ... import config, metrics
from ...compat.names import torch as private
from ...compat.names.torch import HigherOrderOperator, OpOverload
from ...compat.names.torch_dynamo import (
    aot_autograd,
    aot_module_simplified,
    results_of_the_user,
    takes_a_list,
)
from ...dispatch.checks import device_values
from ...ir.tape import Value
from ...lowering.fx_graphs import decompositions
from ...lowering.fx_graphs.composite_marks import number_composites
from ...step.sync import sync_device
from ...tensor.device import Device
from ...tensor.storage import Overtaken, hold_together, value_of, wrap, wrap_all
from .. import eager, region
from .graph_operation import GraphOperation
from .graph_refusals import refusal_in
from .host_device_split import Unsplittable, constants, evaluate, results, split
from .overlapping_writes import overlapping_writes

_log = logging.getLogger("torch_xla.dynamo")


def compile_unsaved(module: GraphModule, examples: Sequence[object]) -> Callable[..., Any]:
    """Compile a graph of PyTorch's functions into a callable that nothing will save."""
    if overlapping_writes(module):
        return _in_functions(module)
    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=functools.partial(compile_graph, kind="forward"),
        bw_compiler=functools.partial(compile_graph, kind="backward"),
        inference_compiler=functools.partial(compile_graph, kind="inference"),
        decompositions=decompositions.table,
        keep_inference_input_mutations=True,
    )(module, examples)
    return compiled


def compile_graph(module: GraphModule, examples: Sequence[object], kind: str) -> Callable[..., Any]:
    """Return a graph of aten operators, compiled: takes its arguments in one list, which it empties."""
    number_composites(module)
    # Autograd calls what is in a backward graph, and what the forward graph kept has the dtypes of this device.
    refusal = None if kind == "backward" else refusal_in(list(module.graph.nodes))
    if refusal is not None:
        return _boxed(_raising(refusal))
    try:
        compiled: Callable[..., Any] = CompiledGraph(module, kind)
        reason = ""
    except Unsplittable as error:
        compiled, reason = _by_operator(module), str(error)
        metrics.count("DynamoGraphByOperator")
    if config.dynamo_debug():
        nodes = sum(node.op == "call_function" for node in module.graph.nodes)
        how = f"recorded operator by operator: {reason}" if reason else "one operation"
        _log.warning("%s graph of %d operators, %s\n%s", kind, nodes, how, module.code.strip())
    return _boxed(compiled)


def compile_whole(module: GraphModule, kind: str) -> Callable[..., Any]:
    """Do as `compile_graph`, for a graph that must become one operation. Raises `Unsplittable`."""
    return _boxed(CompiledGraph(module, kind))


def _boxed(compiled: Callable[..., object]) -> Callable[..., object]:
    def boxed(arguments: list[Any]) -> object:
        taken = list(arguments)
        arguments.clear()
        return compiled(taken)

    return takes_a_list(boxed)


def _raising(refusal: Exception) -> Callable[[list[object]], object]:
    """Return a graph that raises when it is called. Dynamo would wrap an error that is raised while it compiles."""

    def raising(_: Sequence[object]) -> object:
        raise refusal.with_traceback(None)

    return raising


def _in_functions(module: GraphModule) -> Callable[..., object]:
    """Return a graph of PyTorch's functions that is recorded function by function, as without `torch.compile`."""
    metrics.count("DynamoGraphByOperator")
    if config.dynamo_debug():
        _log.warning(
            "graph recorded operator by operator: a call writes to an element twice, or reads it through another tensor"
        )
    return module


def _by_operator(module: GraphModule) -> Callable[[Sequence[object]], object]:
    return lambda arguments: module(*arguments)


class CompiledGraph:
    """A graph that is one operation on the device, with what the host does before and after it."""

    def __init__(self, module: GraphModule, kind: str) -> None:
        self._by_operator = _by_operator(module)
        self._parts = split(module, kind, None if kind == "inference" else results_of_the_user(kind))
        self._has_inner_graphs = any(isinstance(node.target, HigherOrderOperator) for node in self._parts.device)
        self._constants = constants(module, list(module.graph.nodes))
        self._operation = GraphOperation(self._parts) if self._parts.module is not None else None
        if self._operation is None and self._parts.before:
            warnings.warn(
                'torch.compile(backend="openxla"): a graph has no tensor on an xla device and runs on the CPU as it '
                'is. Move the model or its inputs with `.to("xla")`.',
                stacklevel=2,
            )
        # Nothing follows an inference graph, so it starts at once. A training step waits for backward and optimizer.
        self._starts = kind == "inference"

    def __call__(self, arguments: Sequence[object]) -> Any:
        parts = self._parts
        values = dict(zip(parts.placeholders, arguments, strict=True))
        values.update(self._constants)
        evaluate(parts.before, values)
        try:
            device = self._record(values)
        except NotImplementedError:
            if not any(isinstance(each, torch.Tensor) and private.is_batched(each) for each in arguments):
                raise
            # `autograd.grad(is_grads_batched=True)` wraps gradients, which have no storage then.
            metrics.count("DynamoGraphByOperator")
            return self._by_operator(arguments)
        if (self._starts or eager.is_on()) and device is not None and not region.is_inside():
            sync_device(device)
        evaluate(parts.after, values)
        return results(parts.results, values)

    def _record(self, values: dict[Any, Any]) -> Device | None:
        """Record the operation and its line. Keep no value afterwards, so that overwritten ones can be donated."""
        parts = self._parts
        while True:
            # Read the values that the graph writes to once more: a write by another thread either came before this
            # read, or is noticed after the graph.
            read = {target: value_of(values[target]) for target, _ in parts.writes if _is_ours(values[target])}
            arguments = [values[node] for node in parts.inputs]
            arguments += [torch.stack([values[node] for node in nodes]) for nodes in parts.scalars]
            made = self._made(arguments)
            del arguments
            by_node = dict(zip(parts.outputs, made, strict=True))
            written, held = [], []
            for target, source in parts.writes:
                tensor = values[target]
                if source in by_node and _is_ours(tensor) and tensor.dtype is by_node[source].spec.dtype:
                    written.append(tensor)
                    held.append((target, by_node[source]))
            try:
                hold_together(written, [value for _, value in held], [read[target] for target, _ in held])
            except Overtaken:
                continue
            break
        del read
        taken = {target for target, _ in held}
        for target, source in parts.writes:
            if target not in taken:
                with torch.no_grad():
                    values[target].copy_(wrap(by_node[source]) if source in by_node else values[source])
        if written:
            private.increment_version(written)
        values.update(zip(parts.outputs, wrap_all(made), strict=True))
        return made[0].device if made else None

    def _made(self, arguments: list[Any]) -> list[Value]:
        if self._operation is None:
            return []
        if device_values.are_on() and not self._has_inner_graphs:
            return self._operation.record_each(arguments)
        return self._operation.record(arguments)


def _is_ours(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def _is_of_operators(module: GraphModule) -> bool:
    """Return whether a graph consists of aten operators, not of PyTorch's functions and modules."""
    return all(
        isinstance(node.target, OpOverload) or getattr(node.target, "__module__", "") in _OF_PYTHON
        for node in module.graph.nodes
        if node.op not in ("placeholder", "get_attr", "output")
    )


# Where functions live that take results apart and compute with sizes.
_OF_PYTHON = ("_operator", "builtins", "math")


def extract_compiled_graph(module: GraphModule, arguments: Sequence[object]) -> Callable[..., object]:
    """Compile `module` for PyTorch's own registration of "openxla"; `arguments` are those of its first call."""
    if _is_of_operators(module):
        boxed = compile_graph(module, arguments, kind="inference")
        return lambda *args: boxed(list(args))
    if overlapping_writes(module):
        return _in_functions(module)
    forward: Callable[..., object] = aot_module_simplified(
        module,
        list(arguments),
        fw_compiler=functools.partial(compile_graph, kind="forward"),
        bw_compiler=functools.partial(compile_graph, kind="backward"),
        inference_compiler=functools.partial(compile_graph, kind="inference"),
        decompositions=decompositions.table(),
        keep_inference_input_mutations=True,
    )
    return forward
