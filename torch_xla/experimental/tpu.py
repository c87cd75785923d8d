"""The old name of `torch_xla._internal.tpu`."""

from .._internal.tpu import get_tpu_env as get_tpu_env
from .._internal.tpu import get_tpu_type as get_tpu_type
from .._internal.tpu import num_available_chips as num_available_chips
from .._internal.tpu import num_available_devices as num_available_devices
from .._internal.tpu import num_logical_cores_per_chip as num_logical_cores_per_chip
from .._internal.tpu import version as version
