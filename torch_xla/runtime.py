"""The runtime: which hardware this process uses, and its place among the processes of the program.

A program of several processes (`torch_xla.launch`, `torchrun`) has one replica in each process, with one device. In a
program of one process, `world_size()` is 1 and every ordinal is 0. Only functions about devices start the client.
"""

from ._engine import planning, processes, runtime, sharding, tensor
from ._engine.compat.names.torch import constant_in_graphs
from ._engine.compile import program_cache
from ._engine.compile.disk import cache_folder
from ._engine.step import clear_schedules


@constant_in_graphs
def device_type() -> str:
    """Return the platform: `"CPU"`, `"CUDA"`, `"TPU"`, or the name of a PJRT plugin.

    `PJRT_DEVICE` decides, else JAX chooses among the hardware of this machine. Starts no client.

    >>> import torch_xla.runtime as xr
    >>> xr.device_type() in ("CPU", "CUDA", "TPU")
    True
    """
    return runtime.selected_device_type()


def set_device_type(pjrt_device: str) -> None:
    """Choose the platform, for programs that cannot set `PJRT_DEVICE`. Call this before anything uses a device.

    JAX code of the same process then runs on that platform too (this sets JAX's `jax_platforms`). Raises
    `RuntimeError` if the client already runs on another platform, or if `PJRT_DEVICE` names another platform.

    >>> import torch_xla.runtime as xr
    >>> xr.set_device_type(xr.device_type())
    """
    runtime.choose_platform(pjrt_device)


def using_pjrt() -> bool:
    """Return True: PJRT is the only runtime. Earlier releases of PyTorch/XLA had a second one."""
    return True


def is_bf16_supported() -> bool:
    """Return True: XLA has `torch.bfloat16` on every platform.

    >>> import torch_xla.runtime as xr
    >>> xr.is_bf16_supported()
    True
    """
    return True


@constant_in_graphs
def world_size() -> int:
    """Return the number of replicas that run this program.

    >>> import torch_xla.runtime as xr
    >>> xr.world_size()
    1
    """
    return processes.replica_count()


@constant_in_graphs
def global_ordinal() -> int:
    """Return the ordinal of this replica, from 0 to `world_size() - 1`.

    >>> import torch_xla.runtime as xr
    >>> xr.global_ordinal()
    0
    """
    return processes.replica_index()


@constant_in_graphs
def local_ordinal() -> int:
    """Return the ordinal of this replica among those of this machine."""
    return processes.local_replica_index()


@constant_in_graphs
def process_count() -> int:
    """Return the number of processes of this program."""
    return processes.process_count()


@constant_in_graphs
def process_index() -> int:
    """Return the index of this process, from 0 to `process_count() - 1`."""
    return processes.process_index()


@constant_in_graphs
def local_process_count() -> int:
    """Return the number of processes of this program on this machine."""
    return processes.local_process_count()


@constant_in_graphs
def host_index() -> int:
    """Return the index of this machine among those of this program."""
    return processes.host_index()


@constant_in_graphs
def addressable_device_count() -> int:
    """Return the number of devices that this process can put tensors on; 1 under SPMD. Starts the client.

    >>> import torch_xla, torch_xla.runtime as xr
    >>> xr.addressable_device_count() == len(torch_xla.devices())
    True
    """
    return tensor.device_count()


@constant_in_graphs
def local_device_count() -> int:
    """Return the number of devices of all processes on this machine. Starts the client."""
    return tensor.device_count() * processes.local_process_count()


@constant_in_graphs
def global_device_count() -> int:
    """Return the number of devices of all processes; 1 under SPMD, where they form one device. Starts the client."""
    return 1 if processes.is_spmd_on() else len(runtime.all_devices())


def addressable_runtime_device_count() -> int:
    """Return the number of physical devices that this process can address. Starts the client."""
    return len(runtime.local_devices())


def global_runtime_device_count() -> int:
    """Return the number of physical devices of all processes: the size of a mesh over all of them. Starts the client.

    >>> import torch_xla.runtime as xr
    >>> xr.global_runtime_device_count() == len(xr.global_runtime_device_attributes())
    True
    """
    return len(runtime.all_devices())


def runtime_device_attributes(device: str) -> dict[str, object]:
    """Return the attributes of a physical device: its name, and on a TPU its coordinates in the mesh of chips.

    `device` is a name from `torch_xla.real_devices()`. Raises `ValueError` for any other name.

    >>> import torch_xla, torch_xla.runtime as xr
    >>> name = torch_xla.real_devices()[0]
    >>> xr.runtime_device_attributes(name)["name"] == name
    True
    """
    return runtime.attributes_of(runtime.device_with_name(device))


def global_runtime_device_attributes() -> list[dict[str, object]]:
    """Return `runtime_device_attributes` of all devices, in the order of a mesh. Starts the client."""
    return [runtime.attributes_of(device) for device in runtime.all_devices()]


def use_spmd(auto: bool | None = False) -> None:
    """Turn on SPMD: `xla:0` becomes all devices of the program, and there is no other ordinal.

    A tensor is one value. Each device has all of it, or one shard of it if
    `torch_xla.distributed.spmd.mark_sharding` has divided it. Call this function before any tensor is on `xla`:
    existing tensors are copied to every device, with a warning. `XLA_USE_SPMD=1` turns SPMD on from the start. A
    process cannot turn it off.

    With `auto` (or `XLA_AUTO_SPMD=1`), a search chooses a layout when a program first multiplies by parameters that
    have no mark: parameters and batches are then divided by that layout. `torch_xla.distributed.spmd.auto_layout()`
    returns the chosen layout; `find_layout` in the same module searches for one before anything runs.

    Raises `RuntimeError` if another ordinal than `xla:0` is in use.

    >>> import torch_xla.runtime as xr
    >>> xr.use_spmd()
    >>> xr.is_spmd(), xr.global_device_count()
    (True, 1)
    """
    sharding.use_all_devices()
    if auto:
        planning.turn_on_automatic_sharding()


@constant_in_graphs
def is_spmd() -> bool:
    """Return whether SPMD is on, that is, whether `xla:0` is all devices.

    >>> import torch_xla.runtime as xr
    >>> isinstance(xr.is_spmd(), bool)
    True
    """
    return processes.is_spmd_on()


def get_master_ip() -> str:
    """Return the address of the machine that runs process 0.

    >>> import torch_xla.runtime as xr
    >>> xr.get_master_ip()
    '127.0.0.1'
    """
    return processes.coordinator_address()


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keep compiled programs at `path`, a folder or an address, for later processes; with `readonly`, only load them.

    Without this call, programs are kept in the user's cache folder (`XLA_PERSISTENT_CACHE_PATH` in the settings). With
    an empty path, no program is kept. The call affects programs compiled from now on. See `torch_xla.cache` for the
    contents of the folder.

    >>> import tempfile, torch_xla.runtime as xr
    >>> xr.initialize_cache(tempfile.mkdtemp(), readonly=False)
    """
    cache_folder.choose(path, readonly)


def clear_computation_cache() -> None:
    """Forget all compiled programs in memory. What is recorded stays, and programs on disk stay.

    >>> import torch, torch_xla.runtime as xr
    >>> (torch.ones(2, device="xla") * 2).tolist()
    [2.0, 2.0]
    >>> xr.clear_computation_cache()
    >>> xr.get_num_cached_compilation_graph()
    0
    """
    clear_schedules()


def get_num_cached_compilation_graph() -> int:
    """Return the number of compiled programs in memory (at most `XLA_COMPILATION_CACHE_SIZE`).

    >>> import torch, torch_xla, torch_xla.runtime as xr
    >>> (torch.ones(3, device="xla") - 1).tolist()
    [0.0, 0.0, 0.0]
    >>> xr.get_num_cached_compilation_graph() >= 1
    True
    """
    return program_cache.size()
