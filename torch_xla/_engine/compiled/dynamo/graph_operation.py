"""Record the device's part of an FX graph as one operation: a rule, and a plan for each kind of operands."""

import logging
from collections.abc import Sequence
from typing import Any

import jax
import torch

from ... import config, dtypes, metrics
from ...atomic import uncollected
from ...caching.interning import table_of_plans
from ...dispatch.call_planning import Call
from ...dispatch.recording_kernel import append, take_apart
from ...ir.call_plan import Number, Operand, Plan
from ...ir.graph import Graph
from ...ir.tape import Value
from ...ir.value_spec import Spec, contiguous_stride, spec_of
from ...ir.view.geometry import Geometry
from ...lowering.fx_graphs import interpreter, plans_of_calls
from ...lowering.machinery.registry import Promotion, Rule, add_rule, rule_of
from ...tensor.device import Device, device_for
from ...tensor.storage import snapshot, value_of
from .host_device_split import Parts

_log = logging.getLogger("torch_xla.dynamo")

# By the operation's name and the kinds of its operands: equal graphs share their plans, and so their programs.
_plans: dict[Any, Plan] = {}
table_of_plans(_plans)


class GraphOperation:
    """Records the device's part of a graph as one operation."""

    def __init__(self, parts: Parts) -> None:
        assert parts.module is not None
        self._parts = parts
        self._is_known = False
        self._rule = _rule(parts)
        self._draws = interpreter.draws(parts.module)

    def record(self, arguments: list[Any]) -> list[Value]:
        """Return the values of the outputs for these inputs: tensors on the device, or Python numbers."""
        call: Call = ([], [], [])
        try:
            take_apart(arguments, False, call)
        except AttributeError:  # of a tensor on the CPU, or one without a value yet
            arguments, call = _on_device(arguments), ([], [], [])
            take_apart(arguments, False, call)
        signature, operands, _ = call
        device = _device_of(operands)
        key = (self._rule.op, *signature)
        plan = _plans.get(key)
        if plan is None:
            plan = _plans[key] = self._plan(arguments, operands)
        return append(plan, call, device)

    def record_each(self, arguments: list[Any]) -> list[Value]:
        """Do as `record`, but each operator by itself, so that the values of each can be looked at."""
        assert self._parts.module is not None
        metrics.count("DynamoGraphByOperator")
        given = [
            each.to("xla") if isinstance(each, torch.Tensor) and each.device.type != "xla" and each.dim() else each
            for each in arguments
        ]
        with torch.no_grad():
            return [snapshot(result) for result in self._parts.module(*given)]

    def _plan(self, arguments: list[Any], operands: list[Any]) -> Plan:
        if self._is_known and config.dynamo_debug():
            _log.warning("%s: recompiled for %s", self._rule.op, _kinds(arguments))
        self._is_known = True
        specs = tuple(each[1].shown if each.__class__ is tuple else each.spec for each in operands)
        template: list[Any] = []
        tensors = numbers = 0
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                template.append(Operand(tensors))
                tensors += 1
            elif isinstance(argument, float):
                template.append(Number(numbers))
                numbers += 1
            else:
                template.append(argument)
        metrics.count("DynamoExtractCompiledGraph")
        outputs = self._promised() or self._worked_out(template, specs, arguments)
        structure = (-1,) * len(outputs) if len(outputs) != 1 else (-2, -1)
        return Plan(
            self._rule.op,
            (tuple(template), {}),
            specs,
            (float,) * numbers,
            outputs,
            structure,
            draws=self._draws,
            inside=self._inside if len(operands) == len(arguments) else None,
            replaces=self._replaced(arguments, specs, outputs),
        )

    def _replaced(
        self, arguments: list[Any], specs: tuple[Spec, ...], outputs: tuple[Spec, ...]
    ) -> tuple[int, ...] | None:
        """Return for each output the operand that the graph overwrites with it; nothing if it overwrites none."""
        written = {source: target for target, source in self._parts.writes}
        if not written:
            return None
        tensors = [n for n, each in zip(self._parts.inputs, arguments, strict=False) if isinstance(each, torch.Tensor)]
        place = {node: index for index, node in enumerate(tensors)}
        found = [place.get(written[node], -1) if node in written else -1 for node in self._parts.outputs]
        return tuple(
            index if index >= 0 and (specs[index].size, specs[index].dtype) == (spec.size, spec.dtype) else -1
            for index, spec in zip(found, outputs, strict=True)
        )

    def _inside(self) -> Graph | None:
        return plans_of_calls.graph_of(self._parts.module) if self._parts.module is not None else None

    def _promised(self) -> tuple[Spec, ...]:
        """Return the outputs as PyTorch described them when it traced the graph; nothing if it did not know the
        sizes.
        """
        specs = []
        for node in self._parts.outputs:
            promised = node.meta["val"]
            if any(not isinstance(n, int) for n in (*promised.shape, *promised.stride())):
                return ()
            size, stride = tuple(promised.shape), tuple(promised.stride())
            stride = stride if Geometry(size, stride).is_dense() else contiguous_stride(size)
            specs.append(spec_of(size, stride, promised.dtype))
        return tuple(specs)

    @uncollected
    def _worked_out(
        self, template: Sequence[object], specs: tuple[Spec, ...], arguments: list[Any]
    ) -> tuple[Spec, ...]:
        numbers = [each for each in arguments if isinstance(each, float)]

        def abstract(*arrays: object) -> tuple[jax.Array | None, ...]:
            filled = [
                arrays[each.index]
                if isinstance(each, Operand)
                else numbers[each.index]
                if isinstance(each, Number)
                else each
                for each in template
            ]
            key = {"key": jax.random.split(jax.random.key(0, impl="rbg"), self._draws)} if self._draws else {}
            return self._rule.lower(*filled, **key)

        with jax.enable_x64(True):
            described = [jax.ShapeDtypeStruct(s.size, dtypes.to_jax(dtypes.on_device(s.dtype))) for s in specs]
            shapes = [each for each in jax.eval_shape(abstract, *described) if each is not None]
        nodes = self._parts.outputs
        return tuple(
            spec_of(shape.shape, contiguous_stride(shape.shape), node.meta["val"].dtype)
            for shape, node in zip(shapes, nodes, strict=True)
        )


def _on_device(arguments: list[Any]) -> list[object]:
    """Return `arguments` with their tensors on the device of the first `xla` tensor, each with a value."""
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    target = next((each.device for each in tensors if each.device.type == "xla"), torch.device("xla"))
    moved = [
        each.to(target) if isinstance(each, torch.Tensor) and each.device.type != "xla" else each for each in arguments
    ]
    for each in moved:
        if isinstance(each, torch.Tensor):
            value_of(each)
    return moved


def _device_of(operands: list[Any]) -> Device:
    """Return the device of the first operand: a value, or a value and its view. The default if there is none."""
    if not operands:
        return device_for(None)
    device: Device = (operands[0][0] if operands[0].__class__ is tuple else operands[0]).device
    return device


def _rule(parts: Parts) -> Rule:
    known = rule_of(parts.name)
    if known is not None:
        return known
    module = parts.module
    assert module is not None
    lone = len(parts.outputs) == 1

    def lower(*arguments: Any, key: jax.Array | None = None) -> Any:
        # One key or an array of several, as a run hands them out.
        outputs = interpreter.interpret(module, arguments, key.reshape(-1) if key is not None else ())
        # Behind `None`, so that one output too is an output among several.
        return (None, *outputs) if lone else outputs

    return add_rule(
        Rule(
            parts.name,
            lower,
            Promotion.NONE,
            interpreter.draws(module) > 0,
            calls_python=interpreter.calls_python(module),
        )
    )


def _kinds(arguments: list[Any]) -> str:
    return ", ".join(
        f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" if isinstance(each, torch.Tensor) else repr(each)
        for each in arguments
    )
