"""Distributed: start several processes, and record the collectives between them.

How processes find each other is in `processes/`.

Doors: fsdp.module_sharding.
"""

from .channels import partners as channel_partners
from .collective_arguments import buckets as gradient_buckets
from .collective_arguments import (
    check_dim,
    check_group_size,
    check_groups,
    check_ordinals,
    check_pairs,
    check_reduction,
    gradients_of,
    scaled,
)
from .collective_arguments import into as copy_into
from .collective_arguments import write as write_results
from .collectives import Groups, all_gather, all_reduce, broadcast, groups_of, reduce_scatter
from .collectives import pair as group_of_pair
from .collectives import place_in as place_in_group
from .collectives import size_of as group_size
from .collectives import start as start_recorded_collectives
from .differentiable_collectives import Exchanged, Gathered, Permuted, Reduced, Scattered
from .fsdp.fsdp_unit import Exchange as UnitExchange
from .fsdp.fsdp_unit import Handle as UnitHandle
from .fsdp.fsdp_unit import Manner as UnitManner
from .fsdp.fsdp_unit import ShardedUnit, found_by_any
from .fsdp.parameter_shards import ShardLayout
from .fsdp.parameter_shards import gather as gather_shards
from .fsdp.parameter_shards import reduce_scatter as reduce_scatter_shards
from .init_process_group import distribute_module, distribute_tensor
from .init_process_group import meet as meet_for_process_group
from .init_process_group import register as register_process_group
from .process_group import XlaGroup
from .process_launch import checked_count as checked_process_count
from .process_launch import device_count as devices_for_launch
from .process_launch import launch
from .process_launch import results as launch_results
from .process_launch import start as start_process
from .torch_device_mesh import install as install_device_mesh
from .torch_device_mesh import means_processes as mesh_means_processes
