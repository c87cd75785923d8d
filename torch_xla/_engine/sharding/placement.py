"""Divide the values of tensors among the devices behind one ordinal."""

import functools
import warnings

import torch

from .. import metrics
from ..compile import output_shardings
from ..ir.sharding import ANY, Free, Placed, Sharding, fitting
from ..ir.tape import Value
from ..lowering.machinery.jax_sharding import lies_on, of_array, over_mesh
from ..processes import spmd_mode
from ..runtime import platform
from ..runtime.device_assignment import Target
from ..step import pending_graph
from ..step.schedule import clear_schedules
from ..step.sync import materialise, sync_device
from ..tensor import sharding_annotations
from ..tensor.device import LOCK, Device, existing_devices, number
from ..tensor.storage import bring, hold, shows_all, snapshot, value_of, wrap


def spread(device: Device, devices: tuple[int, ...] | None = None) -> None:
    """Let `device` represent all devices of the program, or those with these ordinals, in this order.

    New tensors on `device` have a copy on each of them, until a mark divides them.
    """
    there = platform.all_devices()
    chosen = there if devices is None else tuple(there[index] for index in devices)
    with LOCK:
        if device.tape.code:
            raise RuntimeError(
                f"{device.torch_device} has recorded operations for one device: call torch_xla.sync() before several "
                "devices are put behind it."
            )
        clear_schedules()
        device.spread_over(chosen)


def use_all_devices() -> None:
    """Let `xla:0` represent all devices of the program. Existing tensors are copied to each when they are used."""
    with LOCK:
        used = existing_devices()
        if spmd_mode.is_on():
            spmd_mode.turn_on()
            return
        if len(used) > 1:
            raise RuntimeError(
                f"use_spmd(): {used[-1].torch_device} is in use, and under SPMD xla:0 means all devices. Call "
                "use_spmd() before anything is put on another ordinal than xla:0."
            )
    for device in used:
        sync_device(device)  # without the lock: others may record while it is compiled
    with LOCK:
        for device in used:
            sync_device(device)
        spmd_mode.turn_on()
        number()
        for device in used:
            spread(device)
    if used and used[0].spread is not None:
        warnings.warn(
            "use_spmd(): tensors were made on xla:0 before. They are copied to every device when they are used next; "
            "call torch_xla.runtime.use_spmd() first to spare that.",
            stacklevel=3,
        )


class DeviceIds(tuple[int, ...]):
    """Numbers of devices, hashed once: thousands of them may be looked up at each mark.

    >>> DeviceIds([0, 1]) == (0, 1)
    True
    """

    _hash: int | None = None

    def __hash__(self) -> int:
        """Return the hash of the tuple of the numbers."""
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash


def sharding_over(
    device: Device, ids: DeviceIds, shape: tuple[int, ...], dims: tuple[tuple[int, ...], ...]
) -> Sharding | None:
    """Return the sharding of values of `device` that divides dimensions along these axes of a mesh.

    The mesh has the devices with these `ids` in a grid of `shape`. If its order does not fit the order of the devices
    behind the ordinal, and no tensor was marked before, the devices are reordered.
    """
    try:
        return _over_devices(ids, shape, dims, device.target)
    except NotImplementedError as error:
        if device.marks:
            raise ValueError(
                f"the mesh has its devices in the order {list(ids)}, and tensors were marked over a mesh of another "
                "order before. Give all meshes of a program their devices in the same order."
            ) from error
    sync_device(device)  # without the lock: others may record while it is compiled
    with LOCK:
        sync_device(device)
        spread(device, ids)
    return _over_devices(ids, shape, dims, device.target)


@functools.lru_cache(maxsize=4096)
def _over_devices(
    ids: DeviceIds, shape: tuple[int, ...], dims: tuple[tuple[int, ...], ...], target: Target
) -> Sharding | None:
    there = platform.all_devices()
    return over_mesh(tuple(map(there.__getitem__, ids)), shape, dims, target)


def place(tensor: torch.Tensor, sharding: Sharding | None) -> None:
    """Divide the current value of `tensor`, and keep it divided when it is written in place."""
    with LOCK:
        sharding = fitting(sharding, tensor.shape)
        bring(tensor, sharding)
        value = value_of(tensor)
        shown = snapshot(tensor)
        if shown is value and value.buffer is not None:
            tensor.untyped_storage().value = sharding_annotations.moved(value, sharding)  # type: ignore[attr-defined]
        else:
            hold(tensor, sharding_annotations.constrained(shown, sharding))


def mark(tensor: torch.Tensor, sharding: Sharding | None) -> None:
    """Divide a tensor as by `place`, and divide in the same way whatever any operation writes to its memory later.

    Raises `RuntimeError` if the memory is divided by another mark.
    """
    metrics.count("XlaMarkSharding")
    metrics.count("VirtualDeviceUsage")
    with LOCK:
        wanted, before = fitting(sharding, tensor.shape), sharding_annotations.mark_of(tensor)
        if before is not None and before.sharding not in (None, wanted) and value_of(tensor).buffer is not None:
            raise RuntimeError(
                f"mark_sharding(): Existing annotation must be cleared first. This tensor of shape "
                f"{list(tensor.shape)} is marked in another way: call clear_sharding(t), or divide it again by "
                "annotate_custom_sharding(t, mesh, partition_spec)."
            )
        place(tensor, sharding)
        sharding_annotations.remember(tensor, wanted)


def annotate(tensor: torch.Tensor, sharding: Sharding | None) -> None:
    """Divide a tensor as by `place`, and replace the mark on its memory, if there is one."""
    with LOCK:
        place(tensor, sharding)
        if sharding_annotations.mark_of(tensor) is not None:
            sharding_annotations.remember(tensor, fitting(sharding, tensor.shape))


def clear(tensor: torch.Tensor) -> None:
    """Remove the mark of a tensor, and replicate it on each device."""
    with LOCK:
        sharding_annotations.forget(tensor)
        place(tensor, None)
        value = value_of(tensor)
        if value.buffer is not None and not sharding_annotations.is_from_host(value):
            value.contents = None


def constrained(tensor: torch.Tensor, sharding: Sharding | None) -> torch.Tensor:
    """Return a copy of `tensor` with this sharding, at this point of the program."""
    with LOCK:
        return wrap(sharding_annotations.constrained(snapshot(tensor), fitting(sharding, tensor.shape)))


def sharding_of(tensor: torch.Tensor) -> Sharding | None:
    """Return the sharding of a tensor's value, and compute it first; `None` if each device has all of it."""
    value: Value = value_of(tensor)
    return of_array(materialise(value), value.device.target)


def planned(tensor: torch.Tensor) -> Sharding | None:
    """Return the sharding of a tensor's mark or computed value; `None` also if XLA has yet to decide."""
    found = sharding_annotations.mark_of(tensor)
    if found is not None:
        return found.sharding
    value = value_of(tensor)
    return None if value.buffer is None else of_array(value.buffer, value.device.target)


def foreseen(tensor: torch.Tensor) -> Placed:
    """Return the sharding that a tensor has, or will have as far as its program determines it. Computes nothing.

    Returns `ANY` if it is not determined. Returns `None`, copies, only for a mark or the result of a program.
    """
    found = sharding_annotations.mark_of(tensor)
    if found is not None:
        return found.sharding
    value = value_of(tensor)
    if value.buffer is not None and shows_all(tensor, value.spec):
        lies = of_array(value.buffer, value.device.target)
        is_by_default = sharding_annotations.is_from_host(value) and lies_on(value.buffer.sharding, value.device.target)
        return ANY if lies is None and is_by_default else lies
    return ANY if value.state == "empty" else _foreseen_on_tape(tensor)


def _foreseen_on_tape(tensor: torch.Tensor) -> Placed:
    graph = pending_graph.graph_of([tensor]).graph
    (slot,), (placed,) = graph.outputs, output_shardings.of_outputs(graph, ())
    if placed is not None:
        return placed
    asking = (each for each in graph.operations if each.plan.op in output_shardings.ASKING)
    is_asked_for = any(each.first_output == slot for each in asking)
    return None if is_asked_for else ANY


def is_said(tensor: torch.Tensor) -> bool:
    """Return whether the sharding of a tensor is determined."""
    return not isinstance(foreseen(tensor), Free)


def is_known(tensor: torch.Tensor) -> bool:
    """Return whether `planned` knows the sharding of a tensor without computing it."""
    return sharding_annotations.mark_of(tensor) is not None or value_of(tensor).buffer is not None
