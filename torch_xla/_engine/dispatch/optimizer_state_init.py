"""Fill an optimizer's initial state when it is made, not in the program of the first step.

A step that makes zeros and one that reads them are two programs; compiled is then the one that all steps share.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import dtypes
from ..ir.tape import Value
from ..metrics import events
from ..metrics.user_lines import line_above
from ..runtime import abstract_devices, buffers
from ..tensor import live_counters
from ..tensor.device import Device
from ..tensor.op_user_lines import is_of_an_optimizer
from ..tensor.storage import value_of
from .recording_kernel import Kernel, recorder, runs_at_once

_NUMBERS: dict[str, Callable[..., object]] = {
    "zeros": lambda *_: 0,
    "zeros_like": lambda *_: 0,
    "ones": lambda *_: 1,
    "full_like": lambda _, fill_value: fill_value,
}


def _filling(name: str) -> Kernel:
    record, number = recorder(f"aten::{name}"), _NUMBERS[name]

    def kernel(*args: object, **kwargs: object) -> torch.Tensor:
        made = record(*args, **kwargs)
        if is_of_an_optimizer(sys._getframe(1)):
            _fill(made, number(*args))
        return made

    return kernel


def _fill(tensor: Tensor, number: object) -> None:
    """Compute the operations recorded for a new tensor, where one device runs its own programs."""
    recorded = value_of(tensor)
    device = recorded.device
    if not _is_of_one_program(device):
        return
    value, target = Value(recorded.spec, device, None, -1), device.target
    host = np.full(value.spec.size, number, dtypes.to_jax(dtypes.on_device(value.spec.dtype)))
    value.buffer = buffers.put(host, target)
    live_counters.values.value += 1
    live_counters.buffers.value += 1
    if events.watched:
        value.line = line_above(2)
    tensor.untyped_storage().value = value  # type: ignore[attr-defined]


def _is_of_one_program(device: Device) -> bool:
    """Return whether the operations recorded on the device become a program that later steps may share."""
    return not runs_at_once() and not abstract_devices.active and device.spread is None


KERNELS = {name: _filling(name) for name in _NUMBERS}

_full_like = recorder("aten::full_like")


def with_first_momentum(original: Callable[..., object]) -> Callable[..., object]:
    """Implement `SGD._init_group`, which gives parameters on `xla` the momentum that later steps find: -0.0.

    PyTorch copies the first gradient, where later steps compute `momentum * buffer + gradient`. Of -0.0 both are
    the same to the last bit, and the first step is the program of all. With dampening they are not, and what is
    differentiated is what PyTorch computes.
    """

    @functools.wraps(original)
    def init_group(
        self: Any,
        group: Mapping[str, object],
        params: Sequence[object],
        grads: Sequence[object],
        momentums: list[object],
        *rest: object,
    ) -> object:
        found = original(self, group, params, grads, momentums, *rest)
        if all(each is not None for each in momentums) or group["differentiable"] or not _is_zero(group["dampening"]):
            return found
        for place, (parameter, grad) in enumerate(zip(params, grads, strict=True)):
            if momentums[place] is None and grad.__class__ is Tensor and grad.device.type == "xla":
                if _is_of_one_program(value_of(grad).device):
                    momentum = _full_like(grad, -0.0)
                    _fill(momentum, complex(-0.0, -0.0) if grad.is_complex() else -0.0)
                    self.state[parameter]["momentum_buffer"] = momentums[place] = momentum
        return found

    return init_group


def _is_zero(number: object) -> bool:
    return not isinstance(number, Tensor) and number == 0
