"""The TPU of this machine, if it has one, and the place of this process. Only one function here starts a client:
`num_expected_global_devices`.
"""

from .. import runtime
from .._engine.compat import removed_names
from .._engine.distributed import process_launch
from .._engine.runtime import tpu_chips

__getattr__ = removed_names.asked_of(__name__)


def num_available_chips() -> int:
    """How many TPU chips are attached to this machine: 0 on one without a TPU."""
    return tpu_chips.chip_count()


def num_logical_cores_per_chip() -> int:
    """How many devices a chip is: 2 up to the third generation, then 1. Raises `OSError` without a TPU."""
    return tpu_chips.cores_per_chip()


def num_available_devices() -> int:
    """How many TPU devices this machine has.

    >>> from torch_xla._internal import tpu
    >>> tpu.num_available_devices() >= tpu.num_available_chips()
    True
    """
    return tpu_chips.device_count()


def version() -> int:
    """The generation: 4 of a v4, 5 of a v5e or v5p, and so on. Raises `OSError` on a machine without a TPU."""
    return tpu_chips.generation()


def get_tpu_env() -> dict[str, str]:
    """What the cloud says of this TPU, as in `{"ACCELERATOR_TYPE": "v4-8", ...}`.

    Asks the metadata server. Raises `OSError` on a machine without a TPU, and where no server answers.
    """
    return tpu_chips.environment()


def get_tpu_type() -> str:
    """The accelerator's type without its size: `"v4"` of a `v4-8`. Raises `OSError` as `get_tpu_env` does."""
    return tpu_chips.environment()["ACCELERATOR_TYPE"].partition("-")[0]


def num_expected_global_devices() -> int:
    """How many devices all processes of the program have: `torch_xla.runtime.global_device_count()`."""
    return runtime.global_device_count()


def num_local_processes() -> int:
    """How many processes `torch_xla.launch` starts on this machine: one for each device.

    >>> from torch_xla._internal import tpu
    >>> tpu.num_local_processes() >= 1
    True
    """
    return process_launch.device_count()


def task_id() -> int:
    """Which of all processes this is: `torch_xla.runtime.process_index()`."""
    return runtime.process_index()


def worker_id() -> int:
    """Which machine this is, of those that take part: `torch_xla.runtime.host_index()`."""
    return runtime.host_index()


def discover_master_worker_ip(use_localhost: bool = True) -> str:
    """The address of the machine that runs process 0: `torch_xla.runtime.get_master_ip()`.

    On one machine that is "127.0.0.1", whatever `use_localhost` says: nobody else takes part.
    """
    return runtime.get_master_ip()
