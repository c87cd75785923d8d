"""Every private name of `torch.distributed` that the engine borrows, and why."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as _c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import Backend
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

# Their signatures in Python's stubs are those of its callers; who writes a group takes what C++ passes.
ProcessGroup: Any = _c10d.ProcessGroup
Work: Any = _c10d.Work

__all__ = ["Backend", "ProcessGroup", "Work", "register_rendezvous_handler", "rendezvous"]


def done(result: Any) -> Any:
    """A work that has ended. PyTorch offers none to groups written in Python."""
    future: Any = torch.futures.Future()
    future.set_result(result)
    return _c10d._create_work_from_future(future)  # type: ignore[attr-defined]


class _OfProcesses(str):
    """The name of a device type that says it is not "xla" where PyTorch asks.

    For a mesh of "xla" devices PyTorch makes no process groups and hands distributed tensors over to SPMD.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other is self

    def __ne__(self, other: object) -> bool:
        return other is not self

    __hash__ = str.__hash__


def give_meshes_groups(wanted: Callable[[], bool]) -> None:
    """A mesh of `xla` devices gets process groups and coordinates like any other, while `wanted()`."""
    original = DeviceMesh.__init__

    def make(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, _OfProcesses(device_type) if device_type == "xla" and wanted() else device_type, *args, **kwargs)
        self._device_type = device_type

    DeviceMesh.__init__ = make  # type: ignore[method-assign]


def distributed(name: str, of: Any, mesh: Any, *args: Any) -> Any:
    """The function `name` of `torch.distributed.tensor`, called as for meshes of other devices.

    Its module is found here: it takes half a second to import, and who is here came from it.
    """
    distribute = getattr(importlib.import_module("torch.distributed.tensor"), name)
    kept = mesh._device_type
    mesh._device_type = _OfProcesses(kept)
    try:
        return distribute(of, mesh, *args)
    finally:
        mesh._device_type = kept
