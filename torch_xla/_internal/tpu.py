"""The TPU of this machine, if it has one, and the place of this process.

Of the functions here, only `num_expected_global_devices` starts a client.
"""

from .. import runtime
from .._engine import distributed
from .._engine import runtime as _runtime
from .._engine.compat import removed_names

__getattr__ = removed_names.asked_of(__name__)


def num_available_chips() -> int:
    """Return the number of TPU chips attached to this machine: 0 on a machine without a TPU."""
    return _runtime.tpu_chip_count()


def num_logical_cores_per_chip() -> int:
    """Return the number of devices per chip: 2 up to the third generation, then 1. Raises `OSError` without a TPU."""
    return _runtime.tpu_cores_per_chip()


def num_available_devices() -> int:
    """Return the number of TPU devices of this machine.

    >>> from torch_xla._internal import tpu
    >>> tpu.num_available_devices() >= tpu.num_available_chips()
    True
    """
    return _runtime.tpu_device_count()


def version() -> int:
    """Return the generation: 4 for a v4, 5 for a v5e or v5p, and so on. Raises `OSError` on a machine without a TPU."""
    return _runtime.tpu_generation()


def get_tpu_env() -> dict[str, str]:
    """Return the cloud's description of this TPU, as in `{"ACCELERATOR_TYPE": "v4-8", ...}`.

    Asks the metadata server. Raises `OSError` on a machine without a TPU, and if no server answers.
    """
    return _runtime.tpu_environment()


def get_tpu_type() -> str:
    """Return the accelerator's type without its size: `"v4"` for a `v4-8`. Raises `OSError` as `get_tpu_env` does."""
    return _runtime.tpu_environment()["ACCELERATOR_TYPE"].partition("-")[0]


def num_expected_global_devices() -> int:
    """Return the number of devices of all processes: `torch_xla.runtime.global_device_count()`."""
    return runtime.global_device_count()


def num_local_processes() -> int:
    """Return the number of processes that `torch_xla.launch` starts on this machine: one for each device.

    >>> from torch_xla._internal import tpu
    >>> tpu.num_local_processes() >= 1
    True
    """
    return distributed.devices_for_launch()


def task_id() -> int:
    """Return the index of this process: `torch_xla.runtime.process_index()`."""
    return runtime.process_index()


def worker_id() -> int:
    """Return the index of this machine among those of this program: `torch_xla.runtime.host_index()`."""
    return runtime.host_index()


def discover_master_worker_ip(use_localhost: bool = True) -> str:
    """Return the address of the machine that runs process 0: `torch_xla.runtime.get_master_ip()`.

    In a program on one machine the address is "127.0.0.1", whatever `use_localhost` is.
    """
    return runtime.get_master_ip()
