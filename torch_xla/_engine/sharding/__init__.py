"""Sharding: divide the values of tensors among devices, and reach the parts.

How a sharding is written is in `ir/`, what it becomes in JAX in `lowering/machinery/jax_sharding.py`, and what users
have marked in `tensor/sharding_annotations.py`.

Doors: op_shardings, placement.
"""

from .addressable_shards import LocalPart, give_local_shards, load_local_shards, local_parts, local_places, local_shards
from .manual_regions import all_reduce as all_reduce_manual
from .manual_regions import copies_of as copies_of_part
from .manual_regions import enter as enter_manual
from .manual_regions import enter_as_marked as enter_manual_as_marked
from .manual_regions import leave as leave_manual
from .manual_regions import make_manual, size_of_part
from .manual_regions import reduce_scatter as reduce_scatter_manual
from .op_shardings import op_sharding_of, sharding_as
from .op_shardings import text_of as sharding_text
from .op_shardings import uploaded as uploaded_by_spec
from .placement import DeviceIds as DeviceIds
from .placement import annotate as annotate_sharding
from .placement import clear as clear_sharding
from .placement import constrained as constrained_to_sharding
from .placement import is_known as is_sharding_known
from .placement import is_said as is_sharding_marked
from .placement import mark as mark_sharding
from .placement import place as place_by_sharding
from .placement import planned as planned_sharding
from .placement import sharding_of, sharding_over, use_all_devices
