"""How the values of tensors are divided among the devices behind one ordinal."""

import torch

from ..client import buffers, platform
from ..client import target as targets
from ..graph.plan import Operand, Plan, interned
from ..graph.sharding import Sharding
from ..graph.tape import Value
from ..lowering.sharding import CONSTRAINT, of_array, to_jax
from .device import LOCK, Device
from .storage import hold, operand_slot, snapshot, value_of, wrap
from .sync import materialise


def spread(device: Device, devices: tuple[int, ...] | None = None) -> None:
    """Has all devices of this process, or those with these ordinals in this order, stand behind `device` together.

    What is made on it from now on lies on all of them: a copy on each, until something says how it is divided.
    """
    local = platform.local_devices()
    chosen = tuple(local) if devices is None else tuple(local[index] for index in devices)
    with LOCK:
        if device.tape.code:
            raise RuntimeError(
                f"{device.torch_device} has recorded operations for one device: call torch_xla.sync() before several "
                "devices are put behind it."
            )
        device.spread = targets.of_mesh(chosen)
        device.tape = device.new_tape()


def place(tensor: torch.Tensor, sharding: Sharding | None) -> None:
    """Divides what `tensor` shows now, and keeps it so where it is written in place."""
    value = value_of(tensor)
    if value.buffer is not None and value.spec is snapshot(tensor).spec:
        moved = Value(value.spec, value.device, None, -1)
        moved.buffer = buffers.place(value.buffer, to_jax(sharding, value.device.target))
        tensor.untyped_storage().value = moved  # type: ignore[attr-defined]
    else:
        hold(tensor, value_of(constrained(tensor, sharding)))


def constrained(tensor: torch.Tensor, sharding: Sharding | None) -> torch.Tensor:
    """A copy of `tensor` that is divided so, wherever it stands in a program."""
    with LOCK:
        value = snapshot(tensor)
        device: Device = value.device
        arguments = (Operand(0), sharding)
        plan = interned(Plan(CONSTRAINT, (arguments, {}), (value.spec,), (), (value.spec,)))
        tape = device.tape
        tape.code += (plan, operand_slot(tape, value))
        made = Value(value.spec, device, tape, len(tape.values))
        tape.values.append(made)
    return wrap(made)


def sharding_of(tensor: torch.Tensor) -> Sharding | None:
    """How the value of a tensor is divided, computing it first; `None`: each device has all of it."""
    value = value_of(tensor)
    return of_array(materialise(value), value.device.target)
