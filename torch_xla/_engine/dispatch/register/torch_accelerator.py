"""`torch.accelerator` once `xla` is in use; before that it answers as without this package.

PyTorch takes a named PrivateUse1 device for the accelerator of the process from the moment of the import, and with it
go default process groups, `DeviceMesh`, pinned memory, `fork_rng`, flex attention's masks and `DataParallel` of
programs that never touch `xla`. Those ask in Python, so it is here that they are answered.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ... import config
from ...compat import patch_list
from ...compat.names import torch as private
from ...dtypes import TO_JAX
from ...runtime import host_malloc, platform, platform_selection
from ...step.sync import sync_device
from ...tensor import device as devices
from ...tensor.device_names import index_in_use
from .memory import MEMBERS as MEMORY

_NONE_IN_USE = (
    "Cannot access accelerator device when none is available. This process has not used `xla` yet: set the environment "
    "variable PJRT_DEVICE (to CPU, for example), call torch.accelerator.set_device_index, or make a tensor on it first."
)


def is_ours() -> bool:
    """Return whether the accelerator of this process is `xla`.

    It is as soon as a client runs, a device was chosen or asked for, or a tensor made on it; from the import on where
    `PJRT_DEVICE` is set, or the machine has an accelerator that this build of PyTorch has no device for.
    """
    if devices.existing_devices() or platform.is_started() or config.pjrt_device():
        return True
    return native() is None and platform_selection.is_accelerated()


def native() -> str | None:
    """Return the accelerator this build of PyTorch was made for, be there one in the machine or not."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        return "cuda"
    if torch.version.xpu is not None:
        return "xpu"
    return "mps" if torch.backends.mps.is_built() else None


def current() -> torch.device | None:
    """Return the accelerator."""
    if is_ours():
        return torch.device("xla")
    found = native()
    return None if found is None else torch.device(found)


def _current_or_host(*_: object) -> torch.device:
    # Unlike `current`, this is never a device that PyTorch was built for and the machine lacks: process groups of
    # programs that name no backend, and FSDP, go by it.
    found = current()
    if found is None or (found.type != "xla" and not torch.get_device_module(found.type).is_available()):
        return torch.device("cpu")
    return found


def answer() -> None:
    """Answer PyTorch's questions in Python about the accelerator, those of `torch.accelerator` and others."""
    patch_list.accelerator["getAccelerator"].put(current)
    for name, functions in _ANSWERS.items():
        patch_list.accelerator[name].put(_answered_by_the_accelerator(*functions))
    patch_list.accelerator["hooks_device_count"].wrap(_count)
    patch_list.empty_host_cache.wrap(_empty_host_cache)
    patch_list.accelerator_or_host.put(_current_or_host)
    patch_list.data_parallel_type.wrap(_without_xla)
    patch_list.is_to_be_initialised.wrap(_if_in_use)
    # PyTorch's cached answer is right until `xla` comes into use.
    devices.before_first_use.append(torch.get_device_module.cache_clear)


def _answered_by_the_accelerator(ours: Callable[..., object], theirs: Callable[..., object]) -> Callable[..., Any]:
    @private.never_traced
    def asked(*args: object) -> Any:
        name = native()
        if is_ours() or (name is None and ours in _USES):
            return ours(*args)
        if name is None:
            raise RuntimeError(_NONE_IN_USE)
        return theirs(torch.get_device_module(name), *args)

    return asked


def _count(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def device_count() -> int:
        return devices.numbered_count() if is_ours() else original()

    return device_count


def _empty_host_cache(original: Callable[[], None]) -> Callable[[], None]:
    # PJRT reads any memory of the host, so none is kept as pinned memory: what can be returned is the heap's.
    def theirs(module: object) -> None:
        # Once PyTorch has our name, its C++ asks us and no other accelerator. Then that one is not in the machine
        # (`late_name`), and has no cache.
        if private.backend_name() != "xla":
            original()

    return _answered_by_the_accelerator(host_malloc.release_memory, theirs)


def _index(index: int) -> int:
    return devices.current_index() if index < 0 else index


def _exchange_device(index: int) -> int:
    before = devices.current_index()
    devices.set_current_index(index)
    return before


def _synchronize(index: int) -> None:
    sync_device(devices.device_at(_index(index)), wait=True)


def _stream(index: int) -> torch.Stream:
    found: torch.Stream = torch.get_device_module("xla").current_stream(_index(index))
    return found


def _set_stream(stream: torch.Stream) -> None:
    torch.get_device_module("xla").set_stream(stream)


def _supported(index: int) -> dict[str, object]:
    index_in_use(index)
    return {"supported_dtypes": set(TO_JAX)}


def _supported_elsewhere(module: object, index: int) -> dict[str, object]:
    return {"supported_dtypes": {each for each in vars(torch).values() if isinstance(each, torch.dtype)}}


# A program that calls one uses the device, where the process has no other accelerator.
_USES = (devices.set_current_index,)

# The functions behind `torch.accelerator`, by their name in PyTorch's library: the answer of `xla`, and that of a
# device module of PyTorch.
_ANSWERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "getDeviceIndex": (devices.current_index, lambda module: module.current_device()),
    "setDeviceIndex": (devices.set_current_index, lambda module, index: module.set_device(index)),
    "exchangeDevice": (_exchange_device, lambda module, index: private.exchange_device(module, index, True)),
    "maybeExchangeDevice": (_exchange_device, lambda module, index: private.exchange_device(module, index, False)),
    "synchronizeDevice": (_synchronize, lambda module, index: module.synchronize(index)),
    "getStream": (_stream, lambda module, index: module.current_stream(index)),
    "setStream": (_set_stream, lambda module, stream: module.set_stream(stream)),
    "getDeviceCapability": (_supported, _supported_elsewhere),
    "isAllocatorInitialized": (platform.is_started, lambda module: module.is_initialized()),
    "emptyCache": (host_malloc.release_memory, lambda module: module.empty_cache()),
    "getDeviceStats": (
        MEMORY["memory_stats_as_nested_dict"],
        lambda module, index: module.memory.memory_stats_as_nested_dict(index),
    ),
    "getMemoryInfo": (MEMORY["mem_get_info"], lambda module, index: module.mem_get_info(index)),
    "resetPeakStats": (MEMORY["reset_peak_memory_stats"], lambda module, index: module.reset_peak_memory_stats(index)),
    "resetAccumulatedStats": (
        MEMORY["reset_accumulated_memory_stats"],
        lambda module, index: module.reset_accumulated_memory_stats(index),
    ),
}
for _hook, _question in {
    "hooks_get_current_device": "getDeviceIndex",
    "hooks_set_current_device": "setDeviceIndex",
    "hooks_exchange_device": "exchangeDevice",
    "hooks_maybe_exchange_device": "maybeExchangeDevice",
}.items():
    _ANSWERS[_hook] = _ANSWERS[_question]


def _without_xla(original: Callable[[], str | None]) -> Callable[[], str | None]:
    """Hide `xla` from `DataParallel`, which divides a module by operators that exist only for CUDA.

    Without a device, it calls the module unchanged, on one device.
    """

    @functools.wraps(original)
    def available_device_type() -> str | None:
        found = original()
        return None if found == "xla" else found

    return available_device_type


def _if_in_use(original: Callable[[], bool]) -> Callable[[], bool]:
    """Report the device as available only if it is in use, so that fake tensors of missing devices can be made."""

    @functools.wraps(original)
    def is_available() -> bool:
        return is_ours() and original()

    return is_available
