"""Tensor: the parts of a `torch.Tensor` on `xla`: its storage, its device, random state, and marks on them.

In: host tensors and calls from `dispatch/`. Out: values on the tape of a device.

Doors: device, device_names, host_known_values, live_counters, op_user_lines, random_state, seeds,
sharding_annotations, spare_capacity, storage, torch_generator, upload, variable_names, views.
"""

from .device import Device, current_index, device_count, device_for, existing_devices, set_current_index
from .device import ordinals as device_ordinals
from .device_names import device_named
from .device_names import index_of as device_index_of
from .device_names import real_names as real_device_names
from .optimization_barrier import delayed as delayed_by_barrier
from .optimization_barrier import put_barrier
from .placeholder_tensors import is_placeholder, placeholder
from .seeds import set_state as set_random_state
from .seeds import state_of as random_state_of
from .sharding_annotations import remember as remember_sharding
from .storage import value_of
from .storage import wrap as wrap_value
from .upload import from_numpy
from .upload import upload as upload_value
