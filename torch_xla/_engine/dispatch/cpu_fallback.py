"""Run operators without a rule on PyTorch's CPU kernels: count each, and warn once with the user's line.

On the CPU; on an NVIDIA GPU by the kernels of a PyTorch that is built for it, if it has one.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from .. import metrics
from ..compat.names.torch import pytree, schema_of
from ..errors import NoLowering
from ..metrics import events
from ..metrics.user_lines import text, user_line, user_lines
from ..tensor.device import LOCK, Device, device_for
from ..tensor.storage import Overtaken, refuse_if_overtaken, value_of
from ..transfer import cuda_zero_copy
from ..transfer.host_copies import to_cpu, upload_into
from .checks.memory_overruns import refuse_overruns
from .cpu_fallback_list import ON_THE_CPU
from .fallback_copies import Copies
from .op_schema import Form, Operator, overload_for

_warned: set[str] = set()


@dataclass(frozen=True)
class _Kernels:
    """Where PyTorch's kernels run, and how tensors come there and back."""

    device: torch.device
    fetch: Callable[[torch.Tensor], torch.Tensor]  # a copy of a device tensor, there
    bring: Callable[[torch.Tensor, Device], torch.Tensor]
    write: Callable[[torch.Tensor, torch.Tensor], None]  # into a device tensor


_CPU = _Kernels(torch.device("cpu"), to_cpu, lambda tensor, device: tensor.to(device.torch_device), upload_into)


def run(operator: Operator, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    """Run the call on copies of its tensors, and copy results and writes back."""
    name = schema_of(operator.overload).name
    start = time.perf_counter()
    if events.guarded and _beside(_target(args, kwargs), args, kwargs) is None:
        events.ask(events.Fallback(name, user_lines(events.depth), start, 0.0))
    metrics.count(name)
    result = _run(name, operator, args, kwargs)
    if events.watched:
        events.emit(events.Fallback(name, user_lines(events.depth), start, time.perf_counter() - start))
    return result


def _run(name: str, operator: Operator, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    device = _target(args, kwargs)
    kernels = _beside(device, args, kwargs)
    if kernels is not None:
        try:
            result = _run_by(kernels, device, operator, args, kwargs)
        except NotImplementedError:
            pass  # there is a kernel for the CPU, perhaps
        else:
            warn(name, kernels.device)
            return result
    warn(name)
    try:
        return _run_by(_CPU, device, operator, args, kwargs)
    except NotImplementedError as error:
        raise NoLowering(
            f"{operator.name} has no rule on the xla device and no CPU kernel for these arguments either: {error}"
        ) from error


def _beside(device: Device, args: tuple[object, ...], kwargs: Mapping[str, object]) -> _Kernels | None:
    """Return the kernels of the GPU behind the device, if the arguments can be copied there."""
    gpu = cuda_zero_copy.gpu_of(device)
    leaves = pytree.tree_leaves((args, kwargs))
    if gpu is None or any(isinstance(leaf, torch.Generator) for leaf in leaves):
        return None
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not all(tensor.dtype in cuda_zero_copy.EXCHANGED and tensor.numel() for tensor in tensors):
        return None
    return _Kernels(
        gpu, cuda_zero_copy.copy_of, lambda tensor, _: cuda_zero_copy.taken(tensor), cuda_zero_copy.write_into
    )


def _run_by(
    kernels: _Kernels, device: Device, operator: Operator, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> object:
    declared = [tensor for where in operator.written for tensor in _tensors_at(where, args, kwargs)]
    ours = [tensor for tensor in declared if tensor.device.type == "xla"]
    read = list(map(value_of, ours))
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla"]
    copies = Copies(kernels.fetch, tensors, declared, whole=operator.form is Form.VIEW)

    def fetch(leaf: object) -> object:
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla":
            return copies.of(leaf)
        if isinstance(leaf, torch.device) and leaf.type == "xla":
            return kernels.device
        return leaf

    def bring(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type == "xla":
            return leaf
        original = copies.original(leaf)
        if original is not None:
            return original
        way = kernels if leaf.device.type == kernels.device.type and leaf.numel() else _CPU
        return way.bring(leaf, device)

    there, named = pytree.tree_map(fetch, (args, kwargs))
    name = schema_of(operator.overload).name
    if kernels is _CPU:
        refuse_overruns(name, there)
        if not name.startswith("aten::"):
            copies.keep()
    result = overload_for(operator, there)(*there, **named)
    try:
        with LOCK:
            refuse_if_overtaken(ours, read)
            # An extension's operator may write to an argument that its schema does not declare as written.
            for tensor in ours + copies.written_undeclared():
                copy = copies.of(tensor)
                if tensor.shape != copy.shape:
                    tensor.resize_(copy.shape)
                if copy.numel():
                    kernels.write(tensor, copy)
    except Overtaken:
        return _run_by(kernels, device, operator, args, kwargs)
    return pytree.tree_map(bring, result)


def _tensors_at(where: int | str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[torch.Tensor]:
    """Return those of an argument, which may be a list."""
    found = args[where] if isinstance(where, int) else kwargs.get(where)
    return [t for t in (found if isinstance(found, (list, tuple)) else (found,)) if isinstance(t, torch.Tensor)]


def warn(name: str, device: torch.device = _CPU.device) -> None:
    """Warn of the first fallback of each operator, with the user's line and the device that runs it."""
    if name not in _warned:
        _warned.add(name)
        is_host = device.type == "cpu"
        where = "the CPU" if is_host else f"PyTorch's kernel for {device}"
        reason = f": {ON_THE_CPU[name]}" if name in ON_THE_CPU else ""
        warnings.warn(
            f"{name} has no XLA lowering here and runs on {where} ({text(user_line())}){reason}. Its inputs are "
            f"computed and copied {'to the host' if is_host else 'on the GPU'} each time. "
            "`torch_xla.debug.metrics.executed_fallback_ops()` lists all of these.",
            stacklevel=2,
        )


def _target(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Device:
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla":
            return device_for(leaf.device)
    device = kwargs.get("device")
    return device_for(device if isinstance(device, torch.device | str | int) else None)
