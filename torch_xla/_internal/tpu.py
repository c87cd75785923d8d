"""The TPU of this machine, if it has one. No client is started."""

from .._engine.client import tpu_host


def num_available_chips() -> int:
    """How many TPU chips are attached to this machine: 0 on one without a TPU."""
    return tpu_host.chip_count()


def num_logical_cores_per_chip() -> int:
    """How many devices a chip is: 2 up to the third generation, then 1. Raises `OSError` without a TPU."""
    return tpu_host.cores_per_chip()


def num_available_devices() -> int:
    """How many TPU devices this machine has.

    >>> from torch_xla._internal import tpu
    >>> tpu.num_available_devices() >= tpu.num_available_chips()
    True
    """
    return tpu_host.device_count()


def version() -> int:
    """The generation: 4 of a v4, 5 of a v5e or v5p, and so on. Raises `OSError` on a machine without a TPU."""
    return tpu_host.generation()


def get_tpu_env() -> dict[str, str]:
    """What the cloud says of this TPU, as in `{"ACCELERATOR_TYPE": "v4-8", ...}`.

    Asks the metadata server. Raises `OSError` on a machine without a TPU, and where no server answers.
    """
    return tpu_host.environment()


def get_tpu_type() -> str:
    """The accelerator's type without its size: `"v4"` of a `v4-8`. Raises `OSError` as `get_tpu_env` does."""
    return tpu_host.environment()["ACCELERATOR_TYPE"].partition("-")[0]
