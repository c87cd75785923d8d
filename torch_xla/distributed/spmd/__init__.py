"""Sharding over a mesh of devices: `import torch_xla.distributed.spmd as xs`.

After `torch_xla.runtime.use_spmd()` one process drives all devices, and a tensor is one value whose shards are on many
devices. You mark tensors, and XLA divides the program.
"""

from ..._engine.ir import ShardingType as ShardingType
from .api import auto_policy as auto_policy
from .api import xla_distribute_module as xla_distribute_module
from .api import xla_distribute_tensor as xla_distribute_tensor
from .auto_sharding import Layout as Layout
from .auto_sharding import auto_layout as auto_layout
from .auto_sharding import find_layout as find_layout
from .linear import EinsumLinear as EinsumLinear
from .linear import XLAPatchedLinear as XLAPatchedLinear
from .linear import apply_backward_optimization_barrier as apply_backward_optimization_barrier
from .linear import apply_xla_patch_to_nn_linear as apply_xla_patch_to_nn_linear
from .linear import xla_patched_nn_linear_forward as xla_patched_nn_linear_forward
from .manual import _mark_manual_sharding as _mark_manual_sharding
from .manual import disable_manual_sharding as disable_manual_sharding
from .manual import enable_manual_sharding as enable_manual_sharding
from .mesh import HybridMesh as HybridMesh
from .mesh import Mesh as Mesh
from .mesh import PartitionSpec as PartitionSpec
from .mesh import get_1d_mesh as get_1d_mesh
from .mesh import get_global_mesh as get_global_mesh
from .mesh import set_global_mesh as set_global_mesh
from .xla_sharded_tensor import XLAShard as XLAShard
from .xla_sharded_tensor import XLAShardedTensor as XLAShardedTensor
from .xla_sharding import MarkShardingFunction as MarkShardingFunction
from .xla_sharding import ShardingSpec as ShardingSpec
from .xla_sharding import annotate_custom_sharding as annotate_custom_sharding
from .xla_sharding import clear_sharding as clear_sharding
from .xla_sharding import mark_sharding as mark_sharding
from .xla_sharding import mark_sharding_with_gradients as mark_sharding_with_gradients
from .xla_sharding import shard_as as shard_as
from .xla_sharding import unwrap_sharded_tensor as unwrap_sharded_tensor
from .xla_sharding import wrap_as_sharded_tensor as wrap_as_sharded_tensor
from .xla_sharding import wrap_if_sharded as wrap_if_sharded
