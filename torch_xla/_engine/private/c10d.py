"""Every private name of `torch.distributed` that the engine borrows, and why."""

import functools
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
Reducer: Any = _c10d.Reducer  # type: ignore[attr-defined]

__all__ = ["Backend", "ProcessGroup", "Reducer", "Work", "register_rendezvous_handler", "rendezvous"]


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
        if device_type == "xla" and wanted():
            _divide_gradients_of_linear()
        original(self, _OfProcesses(device_type) if device_type == "xla" and wanted() else device_type, *args, **kwargs)
        self._device_type = device_type

    DeviceMesh.__init__ = make  # type: ignore[method-assign]


@functools.cache
def _divide_gradients_of_linear() -> None:
    """Gives distributed tensors the gradient of `linear`.

    PyTorch composes `linear` of products for other devices, whose gradients distributed tensors know; here it is one
    operator. The module is found here for the same reason as below.
    """
    dispatcher = importlib.import_module("torch.distributed.tensor").DTensor._op_dispatcher
    dispatcher._custom_op_handlers[torch.ops.aten.linear_backward.default] = _gradients_of_linear


def _gradients_of_linear(operator: Any, args: Any, kwargs: Any) -> list[torch.Tensor | None]:
    input, gradient, weight, wanted = args
    rows = gradient.reshape(-1, gradient.shape[-1])
    return [
        gradient @ weight if wanted[0] else None,
        rows.t() @ input.reshape(-1, input.shape[-1]) if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    ]


def give_data_parallel(make: Callable[..., Any], check_hook: Callable[[Any], None]) -> None:
    """`DistributedDataParallel` makes its reducer by `make`; `check_hook` sees one that gets a communication hook."""
    torch.distributed.Reducer = make  # type: ignore[attr-defined, assignment, misc]
    for name in ("_register_comm_hook", "_register_builtin_comm_hook"):
        original = getattr(torch.distributed, name)

        def register(reducer: Any, *args: Any, original: Callable[..., None] = original) -> None:
            check_hook(reducer)
            original(reducer, *args)

        setattr(torch.distributed, name, register)


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
