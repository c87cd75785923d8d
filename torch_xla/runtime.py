"""The runtime: which hardware this process uses, and its place among the processes of the program.

A program of several processes (`torch_xla.launch`, `torchrun`) asks these functions where it is: each of its processes
is one replica, with one device. Alone, `world_size()` is 1 and every ordinal is 0. Only functions that name devices
start the client.
"""

from ._engine.compat.names.torch import constant_in_graphs
from ._engine.compile import program_cache
from ._engine.compile.disk import disk_cache
from ._engine.planning.sharding_search import automatic
from ._engine.processes import identity, spmd_mode
from ._engine.runtime import device_attributes, platform, platform_selection
from ._engine.sharding import placement
from ._engine.tensor import device as devices


@constant_in_graphs
def device_type() -> str:
    """The platform: `"CPU"`, `"CUDA"`, `"TPU"`, or the name of a PJRT plugin.

    `PJRT_DEVICE` decides, or JAX's own choice among the hardware that is there. Starts no client.

    >>> import torch_xla.runtime as xr
    >>> xr.device_type() in ("CPU", "CUDA", "TPU")
    True
    """
    return platform_selection.device_type()


def set_device_type(pjrt_device: str) -> None:
    """Chooses the platform, for programs that cannot set `PJRT_DEVICE`. Call it before anything uses a device.

    JAX code of the same process is then on that platform too (this sets JAX's `jax_platforms`). Raises
    `RuntimeError` if the client runs on another platform already, or if `PJRT_DEVICE` names another one.

    >>> import torch_xla.runtime as xr
    >>> xr.set_device_type(xr.device_type())
    """
    platform_selection.choose(pjrt_device)


def using_pjrt() -> bool:
    """True: there is no other runtime. From the time when there was."""
    return True


def is_bf16_supported() -> bool:
    """True: XLA has `torch.bfloat16` on every platform.

    >>> import torch_xla.runtime as xr
    >>> xr.is_bf16_supported()
    True
    """
    return True


@constant_in_graphs
def world_size() -> int:
    """How many replicas run this program.

    >>> import torch_xla.runtime as xr
    >>> xr.world_size()
    1
    """
    return identity.replica_count()


@constant_in_graphs
def global_ordinal() -> int:
    """Which replica this is, from 0 to `world_size() - 1`.

    >>> import torch_xla.runtime as xr
    >>> xr.global_ordinal()
    0
    """
    return identity.replica_index()


@constant_in_graphs
def local_ordinal() -> int:
    """Which replica this is, counted on this machine."""
    return identity.local_replica_index()


@constant_in_graphs
def process_count() -> int:
    """How many processes take part in this program."""
    return identity.process_count()


@constant_in_graphs
def process_index() -> int:
    """Which process this is, from 0 to `process_count() - 1`."""
    return identity.process_index()


@constant_in_graphs
def local_process_count() -> int:
    """How many processes of this program run on this machine."""
    return identity.local_process_count()


@constant_in_graphs
def host_index() -> int:
    """Which machine this is, of those that take part."""
    return identity.host_index()


@constant_in_graphs
def addressable_device_count() -> int:
    """How many devices this process can put tensors on; 1 under SPMD. Starts the client.

    >>> import torch_xla, torch_xla.runtime as xr
    >>> xr.addressable_device_count() == len(torch_xla.devices())
    True
    """
    return devices.device_count()


@constant_in_graphs
def local_device_count() -> int:
    """How many devices the processes on this machine have together. Starts the client."""
    return devices.device_count() * identity.local_process_count()


@constant_in_graphs
def global_device_count() -> int:
    """How many devices all processes have together; 1 under SPMD, where they are one. Starts the client."""
    return 1 if spmd_mode.is_on() else len(platform.all_devices())


def addressable_runtime_device_count() -> int:
    """How many physical devices this process can address. Starts the client."""
    return len(platform.local_devices())


def global_runtime_device_count() -> int:
    """How many physical devices all processes have together: the size of a mesh over all of them. Starts the client.

    >>> import torch_xla.runtime as xr
    >>> xr.global_runtime_device_count() == len(xr.global_runtime_device_attributes())
    True
    """
    return len(platform.all_devices())


def runtime_device_attributes(device: str) -> dict[str, object]:
    """What a physical device tells about itself: its name, and on a TPU its place in the mesh of chips.

    `device` is a name from `torch_xla.real_devices()`. Raises `ValueError` for another one.

    >>> import torch_xla, torch_xla.runtime as xr
    >>> name = torch_xla.real_devices()[0]
    >>> xr.runtime_device_attributes(name)["name"] == name
    True
    """
    return device_attributes.attributes_of(device_attributes.device_with_name(device))


def global_runtime_device_attributes() -> list[dict[str, object]]:
    """`runtime_device_attributes` of all devices, in the order in which a mesh counts them. Starts the client."""
    return [device_attributes.attributes_of(device) for device in platform.all_devices()]


def use_spmd(auto: bool | None = False) -> None:
    """Turns on SPMD: `xla:0` stands for all devices of the program, and there is no other ordinal.

    A tensor is one value; each device has all of it, or its part where `torch_xla.distributed.spmd.mark_sharding` says
    how it is divided. Call it before tensors are made on `xla`: those that exist are copied to every device, with a
    warning. `XLA_USE_SPMD=1` does it from the start. There is no way back in a process.

    With `auto` (or `XLA_AUTO_SPMD=1`) a layout is looked for when a program first multiplies by parameters that nobody
    has marked: those are divided so from then on, and so are batches. `torch_xla.distributed.spmd.auto_layout()` shows
    what was found; `find_layout` there looks for one before anything runs.

    Raises `RuntimeError` if another ordinal than `xla:0` is in use.

    >>> import torch_xla.runtime as xr
    >>> xr.use_spmd()
    >>> xr.is_spmd(), xr.global_device_count()
    (True, 1)
    """
    placement.use_all_devices()
    if auto:
        automatic.turn_on()


@constant_in_graphs
def is_spmd() -> bool:
    """Whether `xla:0` stands for all devices.

    >>> import torch_xla.runtime as xr
    >>> isinstance(xr.is_spmd(), bool)
    True
    """
    return spmd_mode.is_on()


def get_master_ip() -> str:
    """The address of the machine that runs process 0.

    >>> import torch_xla.runtime as xr
    >>> xr.get_master_ip()
    '127.0.0.1'
    """
    return identity.coordinator_address()


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keeps compiled programs in the folder `path`, also for later processes; `readonly` only finds them there.

    Without this call they are kept in the user's cache folder (`XLA_PERSISTENT_CACHE_PATH` in the settings); an empty
    path keeps none. Whatever is compiled from now on is concerned. See `torch_xla.cache` for what the folder holds.

    >>> import tempfile, torch_xla.runtime as xr
    >>> xr.initialize_cache(tempfile.mkdtemp(), readonly=False)
    """
    disk_cache.choose(path, readonly)


def get_num_cached_compilation_graph() -> int:
    """How many compiled programs are in memory (at most `XLA_COMPILATION_CACHE_SIZE`).

    >>> import torch, torch_xla, torch_xla.runtime as xr
    >>> (torch.ones(3, device="xla") - 1).tolist()
    [0.0, 0.0, 0.0]
    >>> xr.get_num_cached_compilation_graph() >= 1
    True
    """
    return program_cache.size()
