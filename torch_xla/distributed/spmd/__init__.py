"""Sharding over a mesh of devices: `import torch_xla.distributed.spmd as xs`.

In this version a mesh has one device, on which every sharding is the whole tensor: programs written for a mesh run,
unsharded. A mesh of several devices can be described; to shard over it raises `NotImplementedError`.
"""

from .api import xla_distribute_module as xla_distribute_module
from .api import xla_distribute_tensor as xla_distribute_tensor
from .xla_sharding import HybridMesh as HybridMesh
from .xla_sharding import Mesh as Mesh
from .xla_sharding import PartitionSpec as PartitionSpec
from .xla_sharding import ShardingSpec as ShardingSpec
from .xla_sharding import clear_sharding as clear_sharding
from .xla_sharding import get_1d_mesh as get_1d_mesh
from .xla_sharding import get_global_mesh as get_global_mesh
from .xla_sharding import mark_sharding as mark_sharding
from .xla_sharding import mark_sharding_with_gradients as mark_sharding_with_gradients
from .xla_sharding import set_global_mesh as set_global_mesh
