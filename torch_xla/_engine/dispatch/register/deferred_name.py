"""Take the name "xla" at its first use where PyTorch itself drives a GPU of this machine.

From the moment that PrivateUse1 has a name PyTorch's C++ takes it for the accelerator of the process, and its backward
engine, which asks for the streams of the accelerator, fails on every tensor of CUDA or MPS (PyTorch 2.11 to 2.15). So a
program that has this package and never uses it must not meet the name. Until there is one, "xla" names a type of device
that PyTorch has no kernels for: a tensor that a program makes there is made on ours.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ... import config
from ...compat.abi import stand_for_unnamed
from ...compat.names import torch as private
from ...runtime import platform_selection
from ...tensor import device as devices
from .autocast import set_default_dtype

_libraries: list[torch.library.Library] = []

# Of a backward pass on another accelerator, beside `xla` in use.
BESIDE_ANOTHER = (
    "PyTorch's backward engine knows one accelerator for each process, and here that is xla, which was used before. "
    "Train on the other device in a process of its own, or give it no gradients (torch.no_grad())."
)


def is_wanted(native: str | None) -> bool:
    """Return whether the machine has the accelerator that PyTorch was built for, and `xla` was not chosen."""
    if native is None or config.pjrt_device():
        return False
    if native == "mps":
        return torch.backends.mps.is_available()
    return platform_selection.has_gpu() if native == "cuda" else Path("/dev/dri").exists()


def wait_for_first_use(then: Callable[[], object]) -> bool:
    """Take the name "xla" with the first tensor on it, or when a device is asked for, and call `then`.

    Return false if this PyTorch does not allow it.
    """
    if not stand_for_unnamed():
        return False
    devices.before_first_use.append(partial(_take, then))
    library = torch.library.Library("aten", "IMPL", "XLA")
    _libraries.append(library)
    library.impl("empty.memory_format", _empty)
    library.impl("empty_strided", _empty_strided)
    torch.serialization.register_package(0, lambda _: None, _restored)
    return True


def _take(then: Callable[[], object]) -> None:
    private.rename_backend("xla")
    then()
    set_default_dtype()


def _restored(storage: object, location: str) -> Any:
    """Restore a storage whose location is a device without a name yet."""
    if not location.startswith("xla") or private.backend_name() == "xla":
        return None
    devices.take_name()
    return torch.serialization.default_restore_location(storage, location)


def _ours(device: torch.device) -> torch.device:
    devices.take_name()
    return torch.device("xla", devices.current_index() if device.index is None else device.index)


def _empty(size: Any, *, device: torch.device, **options: Any) -> torch.Tensor:
    return torch.empty(size, device=_ours(device), **_given(options))


def _empty_strided(size: Any, stride: Any, *, device: torch.device, **options: Any) -> torch.Tensor:
    return torch.empty_strided(size, stride, device=_ours(device), **_given(options))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
