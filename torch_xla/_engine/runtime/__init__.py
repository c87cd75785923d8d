"""Runtime: platforms, devices, buffers and memory, by PJRT through JAX.

Nothing here knows PyTorch's dispatcher or the graph.

Doors: abstract_buffer, abstract_devices, buffers, device_assignment, device_memory, host_malloc, launch_throttle,
memory_mappings, platform, platform_selection, topologies, tpu_chips.
"""

from ..imported_objects import set_aside as set_imported_objects_aside
from .device_attributes import attributes_of, device_with_name, slices_of
from .device_memory import usage as memory_usage
from .pjrt_plugins import plugin_of
from .pjrt_plugins import register as register_plugin
from .pjrt_plugins import register_installed as register_installed_plugins
from .platform import all_devices, local_devices
from .platform import device_type as type_in_use
from .platform import is_started as is_client_started
from .platform import real_name as real_device_name
from .platform_selection import choose as choose_platform
from .platform_selection import device_type as selected_device_type
from .platform_selection import is_device_type
from .topologies import Topology
from .tpu_chips import chip_count as tpu_chip_count
from .tpu_chips import cores_per_chip as tpu_cores_per_chip
from .tpu_chips import device_count as tpu_device_count
from .tpu_chips import environment as tpu_environment
from .tpu_chips import generation as tpu_generation
