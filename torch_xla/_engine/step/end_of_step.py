"""End a step: start what was recorded, then call the step closures."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from .. import metrics
from ..metrics import events
from ..metrics.user_lines import user_lines
from ..tensor import device as devices
from ..tensor.device import Device
from ..tensor.storage import value_of
from .in_flight import wait as wait_for_programs
from .named_scopes import open_here, refuse_open_scopes
from .step_closures import Background, StepClosures
from .sync import sync_device, sync_step

_marks = metrics.counter("MarkStep")

# By ordinal: closures that run in the thread that ends the step, and closures that run in the background.
_closures: dict[int, StepClosures] = {}
_background: dict[int, list[tuple[Callable[..., object], tuple[object, ...]]]] = {}
_worker = Background()

# When the last step ended, by ordinal; kept while there are listeners.
_ended: dict[int, float] = {}


def end_step(wait: bool = False, reset_scope: bool = True) -> None:
    """End the step of this thread's device. Libraries call it hundreds of times with nothing to do: 1 µs then.

    With `reset_scope`, raise `RuntimeError` if this thread is inside of a named scope.
    """
    if reset_scope and open_here.scopes:
        refuse_open_scopes()
    _marks.value += 1
    if not devices.existing and not _closures and not _background:
        return  # the program does not use `xla`, and ending a step does not begin to
    device = devices.device_at(devices.current.index)
    if _closures or _background or _worker.started:
        _sync_and_close(device, wait)
    elif wait or device.tape.code or device.marks or events.closely:
        _sync(device, wait)


def _sync_and_close(device: Device, wait: bool) -> None:
    calls = [partial(closure, *_frozen(args)) for closure, args in _background.get(device.index, ())]
    _sync(device, wait)
    _background.pop(device.index, None)
    for call in calls:
        _worker.start(call)
    closures = _closures.get(device.index)
    if closures is not None:
        try:
            closures.run()
        finally:
            if not closures:
                _closures.pop(device.index, None)
    _worker.raise_failure()


def mark(device: Device, wait: bool, reset_scope: bool = True) -> None:
    """Count a step of `device` and start what was recorded on it, without running closures.

    With `reset_scope`, raise `RuntimeError` if this thread is inside of a named scope.
    """
    if reset_scope and open_here.scopes:
        refuse_open_scopes()
    _marks.value += 1
    _sync(device, wait)


def _sync(device: Device, wait: bool) -> None:
    if not (events.closely or (events.watched and device.tape.code)):
        sync_step(device, wait)
        return
    index = device.index
    start = _ended.get(index) or time.perf_counter()
    sync_step(device, wait)
    now = _ended[index] = time.perf_counter()
    step = _marks.value, index, user_lines(events.depth) if events.closely else (), start, now - start
    if events.steps is not None:
        events.steps.append(step)
    if events.closely or now > events.due:
        events.emit(events.StepEnd(*step))


def start_recorded(device: Device, wait: bool) -> None:
    """Start what was recorded on `device`; the step goes on."""
    sync_device(device, wait)


def add_closure(closure: Callable[..., object], args: tuple[object, ...], in_background: bool) -> None:
    """Queue `closure(*args)` for the end of the step of this thread's device."""
    index = devices.current_index()
    if in_background:
        _background.setdefault(index, []).append((closure, tuple(args)))
    else:
        _closures.setdefault(index, StepClosures()).add(partial(closure, *args))


def wait_for_devices(devices: Sequence[Device] = ()) -> None:
    """Wait until everything started on these devices has ended: on all of this process, if none are given."""
    wait_for_programs([device.target.device for device in devices] if devices else None)


def wait_for_closures() -> None:
    """Wait until the closures started in the background have returned; raises what one of them raised."""
    _worker.join()


def _frozen(args: tuple[object, ...]) -> list[object]:
    # While a closure runs in the background the next step is recorded, which may write to the same tensors: it would
    # show the closure values of that step, and cut that step's graph wherever the closure happens to look. Lists and
    # objects are not looked into: the closure may be meant to write to them.
    return [_alias(each) if isinstance(each, torch.Tensor) and each.device.type == "xla" else each for each in args]


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    alias = tensor.detach().clone()
    # Whether the closure still runs when the next step ends must not decide what that step's program may give away.
    value_of(alias).shared = True
    return alias
