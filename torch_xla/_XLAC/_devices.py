"""The functions of `torch_xla._XLAC` about devices and processes."""

import jax

from .._engine import processes, runtime, tensor
from .._engine.compile import program_cache

_replicas: list[str] = []


def _xla_get_runtime_devices() -> list[str]:
    """Return the names of the hardware of this process, `["CPU:0"]`."""
    return [runtime.real_device_name(device) for device in runtime.local_devices()]


def _xla_get_all_runtime_devices() -> list[str]:
    """Return the names of the hardware of all processes."""
    return [runtime.real_device_name(device) for device in runtime.all_devices()]


def _xla_num_runtime_devices() -> int:
    """Return the number of hardware devices of this process."""
    return len(runtime.local_devices())


def _xla_num_global_devices() -> int:
    """Return the number of hardware devices of all processes."""
    return len(runtime.all_devices())


def _xla_get_device_attributes(device: str) -> dict[str, object]:
    """Return what the hardware called `device` reports, at least its name."""
    return runtime.attributes_of(_hardware(device))


def _xla_get_all_device_attributes() -> list[dict[str, object]]:
    """Return what the hardware of all processes reports."""
    return [runtime.attributes_of(device) for device in runtime.all_devices()]


def _hardware(name: str) -> jax.Device:
    """Return the hardware with the name of an `xla` device or with its own."""
    if name.startswith("xla"):
        return tensor.device_named(name).target.device
    return runtime.device_with_name(name)


def _xla_get_device_ordinal(device: str) -> int:
    """Return the number in the name of a device, such as 1 for "xla:1"."""
    return tensor.device_index_of(device)


def _xla_get_device_hw_type(device: str = "") -> str:
    """Return the kind of hardware behind an `xla` device, such as "CPU": the platform that PJRT_DEVICE chose."""
    tensor.device_named(device or None)
    return runtime.type_in_use()


def _xla_get_platform_version() -> str:
    """Return the version of the runtime, as the PJRT client reports it."""
    return runtime.local_devices()[0].client.platform_version


def _xla_get_process_index() -> int:
    """Return the index of this process."""
    return processes.place_of_process().index


def _xla_get_num_processes() -> int:
    """Return the number of processes."""
    return processes.place_of_process().count


def _xla_set_replication_devices(names: list[str]) -> None:
    """Note the devices that compute together. Each process has one, so that this decides nothing."""
    _replicas[:] = names


def _xla_get_replication_devices() -> list[str]:
    """Return the devices that `_xla_set_replication_devices` noted."""
    return list(_replicas)


def _xla_get_replication_devices_count() -> int:
    """Return the number of devices that `_xla_set_replication_devices` noted."""
    return len(_replicas)


def _xla_get_spmd_config_is_locked() -> bool:
    """Return whether a device is in use, after which `use_spmd()` has to copy what is on it."""
    return bool(tensor.existing_devices())


def _xla_force_spmd_device() -> None:
    """Make `xla:0` represent all devices, as `torch_xla.runtime.use_spmd()` does before a device is used."""
    processes.turn_on_spmd()


def _xla_computation_cache_is_initialized() -> bool:
    """Return whether a computation was made, so that settings of the cache come too late."""
    return program_cache.size() > 0


def _get_seed_info_id() -> int:
    """Return the identity of the random seed among a computation's inputs, which is no tensor's.

    `_get_tensors_xla_device_data_node` never gives it: each run of a computation draws new numbers.
    """
    return -127389


def _prepare_to_exit() -> None:
    """Do nothing: what runs at the end of the process is registered with `atexit`."""


# Names with an underscore, too: `from ... import *` takes what is listed here.
__all__ = [name for name, value in list(globals().items()) if getattr(value, "__module__", "") == __name__]
