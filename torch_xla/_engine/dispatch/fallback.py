"""Operators without a rule run on the CPU: correct, counted as `aten::<op>`, and named once with the user's line."""

import time
import warnings
from typing import Any

import torch

from .. import metrics
from ..errors import NoLowering
from ..host.transfer import to_cpu, upload_into
from ..metrics import events
from ..metrics.lines import text, user_line, user_lines
from ..private.torch import pytree, schema_of
from ..record.device import Device, device_for
from .cpu_fallbacks import ON_THE_CPU
from .forms import Operator

_warned: set[str] = set()


def run(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs the call on CPU copies of its tensors and brings results and writes back."""
    name = schema_of(operator.overload).name
    start = time.perf_counter()
    if events.guarded:
        events.ask(events.Fallback(name, user_lines(events.depth), start, 0.0))
    result = _run(name, operator, args, kwargs)
    if events.watched:
        events.emit(events.Fallback(name, user_lines(events.depth), start, time.perf_counter() - start))
    return result


def _run(name: str, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    note(name)
    device = _target(args, kwargs)
    copies: dict[int, torch.Tensor] = {}
    originals: dict[int, torch.Tensor] = {}

    def fetch(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla":
            if id(leaf) not in copies:
                copies[id(leaf)] = to_cpu(leaf)
                originals[id(copies[id(leaf)])] = leaf
            return copies[id(leaf)]
        if isinstance(leaf, torch.device) and leaf.type == "xla":
            return torch.device("cpu")
        return leaf

    def bring(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
            original = originals.get(id(leaf))
            return original if original is not None else leaf.to(device.torch_device)
        return leaf

    cpu_args, cpu_kwargs = pytree.tree_map(fetch, (args, kwargs))
    try:
        result = operator.overload(*cpu_args, **cpu_kwargs)
    except NotImplementedError as error:
        raise NoLowering(
            f"{operator.name} has no rule on the xla device and no CPU kernel for these arguments either: {error}"
        ) from error
    for where in operator.written:
        target = args[where] if isinstance(where, int) else kwargs.get(where)
        for tensor in target if isinstance(target, (list, tuple)) else (target,):
            if isinstance(tensor, torch.Tensor):
                copy = copies[id(tensor)]
                if tensor.shape != copy.shape:
                    tensor.resize_(copy.shape)
                upload_into(tensor, copy)
    return pytree.tree_map(bring, result)


def note(name: str) -> None:
    """Counts a fallback of the operator `name`; the first one of each is warned about with the user's line."""
    metrics.count(name)
    if name not in _warned:
        _warned.add(name)
        reason = f": {ON_THE_CPU[name]}" if name in ON_THE_CPU else ""
        warnings.warn(
            f"{name} has no XLA lowering here and runs on the CPU ({text(user_line())}){reason}. Its inputs are "
            "computed and copied to the host each time. `torch_xla.debug.metrics.executed_fallback_ops()` lists all "
            "of these.",
            stacklevel=2,
        )


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Device:
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla":
            return device_for(leaf.device)
    return device_for(kwargs.get("device"))
