"""Make `xla` a device of PyTorch: the name, the hooks, the guard and the module `torch.xla`."""

import sys
import types
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...compat.abi import (
    answer_for_current_device,
    answer_for_device_count,
    answer_with_memory_of_the_host,
    confirm_layout,
    let_exceptions_pass,
    register_guard,
)
from ...compat.names import torch as private
from ...processes import identity
from ...runtime import device_memory, platform
from ...tensor import device as devices
from ...tensor.device_names import index_or_current as _index
from .amp_module import module as amp
from .deferred_name import is_wanted, wait_for_first_use
from .events_and_streams import MEMBERS as STREAMS
from .graphed_callables import make_graphed_callables
from .graphs import MEMBERS as GRAPHS
from .graphs import answer as answer_for_graphs
from .memory import MEMBERS as MEMORY
from .memory_snapshot import MEMBERS as SNAPSHOT
from .memory_snapshot import PRIVATE_MEMBERS as HISTORY
from .random_states import MEMBERS as RANDOM
from .refused_names import refusing
from .torch_accelerator import answer, native


class _Hooks(private.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, device_index: int) -> bool:
        return platform.is_started()


class _Guard(private.DeviceGuard):
    def type_(self) -> Any:
        return private.DeviceType.PrivateUse1


_keep: list[Any] = []


def is_installed() -> bool:
    """Return whether `xla` is a device of this process already."""
    return bool(_keep)


def claim_device_name() -> None:
    """Make "xla" the name of PyTorch's PrivateUse1 device, now or at its first use (`deferred_name`).

    Raises `ImportError` if another package has it.
    """
    taken = private.backend_name()
    if taken not in ("privateuseone", "xla"):
        raise ImportError(
            f"torch_xla needs PyTorch's PrivateUse1 device, and another package already uses it for {taken!r} "
            f"(torch_tpu does). Uninstall that package, or start Python with TORCH_DEVICE_BACKEND_AUTOLOAD=0 so that "
            f"it is not loaded by itself."
        )
    private.register_device_module("xla", module)
    hooks, guard = _Hooks(), _Guard()
    _keep.extend((hooks, guard))
    private.register_hooks(hooks)
    register_guard(private.register_device_guard, guard)
    confirm_layout()
    let_exceptions_pass()
    answer_for_current_device(devices.current)
    answer_for_device_count(_ordinals)
    devices.before_second_ordinal.append(_count_ordinals)
    _count_ordinals()
    identity.after_taking.append(_count_ordinals)
    if not (is_wanted(native()) and wait_for_first_use(partial(answer_with_memory_of_the_host, hooks))):
        private.rename_backend("xla")
        answer_with_memory_of_the_host(hooks)
    answer()
    answer_for_graphs()


# The number of ordinals that PyTorch's C++ sees.
_ordinals = types.SimpleNamespace(count=1)


def _count_ordinals() -> None:
    # PyTorch asks at the first backward pass of the process, also of CPU tensors: that must not start a client.
    known = platform.is_started() or identity.is_numbered()
    _ordinals.count = device_count() if known else platform.expected_device_count()


def is_available() -> bool:
    """Return whether there is an `xla` device: always, since the CPU is one."""
    return True


def is_initialized() -> bool:
    """Return whether a client runs, or a device was asked for; fake tensors ask only then which device is current."""
    return platform.is_started() or bool(devices.existing_devices()) or devices.current_index() > 0


def device_count() -> int:
    """Return how many ordinals programs count: under torchrun, one for each process of this machine."""
    return devices.numbered_count()


def current_device() -> int:
    """Return the ordinal a bare "xla" means in this thread."""
    return devices.current_index()


def set_device(device: object) -> None:
    """Make `device` the meaning of a bare "xla" in this thread."""
    devices.set_current_index(_index(device))


class device:  # noqa: N801
    """A `with` block in which a bare "xla" means this ordinal; `None` and a negative one change nothing."""

    def __init__(self, device: object) -> None:
        self.idx = _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = devices.current_index()
        devices.set_current_index(self.idx)

    def __exit__(self, *_: object) -> None:
        devices.set_current_index(self.prev_idx)


class device_of(device):  # noqa: N801
    """A `with` block in which a bare "xla" means the ordinal of a tensor; others change nothing."""

    def __init__(self, obj: object) -> None:
        found = getattr(obj, "device", None)
        if not isinstance(found, torch.device):
            raise TypeError(f"torch.xla.device_of({obj!r}): expected a tensor or a storage, got {type(obj).__name__}")
        super().__init__(found.index if found.type == "xla" else None)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes `torch.autocast("xla")` accepts."""
    return [torch.bfloat16, torch.float16]


def get_device_properties(device: object = None) -> types.SimpleNamespace:
    """Return the name, platform and memory of the device, and further properties of a GPU. Starts the client."""
    target = devices.device_at(_index(device)).target
    found = types.SimpleNamespace(
        name=target.kind,
        platform=target.platform,
        id=target.device.id,
        total_memory=device_memory.usage(target.device).limit,
    )
    cores, capability = getattr(target.device, "core_count", None), _compute_capability(target.device)
    if cores is not None and capability is not None:
        found.multi_processor_count = cores
        found.major, found.minor = capability
    return found


def _compute_capability(device: object) -> tuple[int, int] | None:
    """Return the two numbers of a CUDA device, (8, 0)."""
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def get_device_name(device: object = None) -> str:
    """Return the vendor's name of the device."""
    return devices.device_at(_index(device)).target.kind


def get_device_capability(device: object = None) -> tuple[int, int]:
    """Return the compute capability of a CUDA device, (8, 0); others have none, which is (0, 0). Starts the client."""
    return _compute_capability(devices.device_at(_index(device)).target.device) or (0, 0)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True: XLA has `torch.bfloat16` on every platform."""
    return True


def is_tf32_supported() -> bool:
    """Return whether the current device has TF32: NVIDIA's GPUs from 8.0 on. Starts the client."""
    capability = _compute_capability(devices.device_at(devices.current_index()).target.device)
    return capability is not None and capability >= (8, 0)


def init() -> None:
    """Start the client, which the first use of a device does by itself."""
    devices.device_at(devices.current_index()).target  # noqa: B018


def ipc_collect() -> None:
    """Do nothing: no memory of a device is shared with other processes."""


def _index_where_loaded(device: object, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the ordinal for what is loaded: where it was saved on the device of another process, that of this one."""
    index = _index(device)
    return devices.current_index() if devices.is_elsewhere(index) else index


def _is_in_bad_fork() -> bool:
    return platform.is_forked()


def _lazy_init() -> None:
    return None


# Checkpointing asks for this before it saves the random state of a device.
_initialized = True


def _exchange_device(index: int) -> int:
    before = devices.current_index()
    devices.set_current_index(index)
    return before


module = types.ModuleType("torch.xla", "The device module of `xla`: what `torch.cuda` is for CUDA.")
for _member in (
    is_available, is_initialized, init, device_count, current_device, set_device, device, device_of,
    get_amp_supported_dtype, get_device_properties, get_device_name, get_device_capability, is_bf16_supported,
    is_tf32_supported, ipc_collect, _is_in_bad_fork, _lazy_init, _exchange_device,
):  # fmt: skip
    setattr(module, _member.__name__, _member)
module._maybe_exchange_device = _exchange_device  # type: ignore[attr-defined]
module._initialized = _initialized  # type: ignore[attr-defined]
# `torch.load` asks it where the tensors of a file go.
module._utils = types.SimpleNamespace(_get_device_index=_index_where_loaded)  # type: ignore[attr-defined]
module.has_half = True  # type: ignore[attr-defined]
module.__getattr__ = refusing(module.__name__)  # type: ignore[method-assign]


def _add_part(name: str, doc: str, members: Mapping[str, object]) -> None:
    """Give `torch.xla` a module of its own, such as `torch.xla.memory`, whose names it has too."""
    part = types.ModuleType(f"torch.xla.{name}", doc)
    vars(part).update(members)
    vars(module).update(members)
    setattr(module, name, part)
    sys.modules[part.__name__] = part


_add_part("memory", "The memory of `xla` devices: statistics, peaks, snapshots.", {**MEMORY, **SNAPSHOT})
vars(sys.modules["torch.xla.memory"]).update(HISTORY)
_add_part(
    "graphs",
    "Graphs of `xla`: what is recorded once and replayed.",
    {**GRAPHS, "make_graphed_callables": make_graphed_callables},
)
_add_part("random", "The random states of `xla` devices.", RANDOM)
_add_part("streams", "Streams and events of `xla`: one order of execution for each device.", STREAMS)
module.amp = amp  # type: ignore[attr-defined]
sys.modules[amp.__name__] = amp
module.__all__ = sorted(name for name in vars(module) if not name.startswith("_"))  # type: ignore[attr-defined]
