"""The old name of `torch_xla.runtime`, with the functions of `xla_model` that it had."""

from ..core.xla_model import broadcast_master_param as broadcast_master_param
from ..core.xla_model import rendezvous as rendezvous
from ..core.xla_model import xla_device as xla_device
from ..runtime import addressable_device_count as addressable_device_count
from ..runtime import device_type as device_type
from ..runtime import global_device_count as global_device_count
from ..runtime import global_ordinal as global_ordinal
from ..runtime import host_index as host_index
from ..runtime import is_bf16_supported as is_bf16_supported
from ..runtime import local_device_count as local_device_count
from ..runtime import local_ordinal as local_ordinal
from ..runtime import local_process_count as local_process_count
from ..runtime import process_count as process_count
from ..runtime import process_index as process_index
from ..runtime import set_device_type as set_device_type
from ..runtime import using_pjrt as using_pjrt
from ..runtime import world_size as world_size
