"""Fully sharded data parallelism: parameters, gradients and optimizer states are divided among the processes."""

from .full_state import full_state as full_state
from .full_state import load_full_state as load_full_state
from .state_dict_utils import consolidate_sharded_model_checkpoints as consolidate_sharded_model_checkpoints
from .state_dict_utils import consolidate_sharded_state_dicts as consolidate_sharded_state_dicts
from .utils import checkpoint_module as checkpoint_module
from .xla_fully_sharded_data_parallel import XlaFullyShardedDataParallel as XlaFullyShardedDataParallel
