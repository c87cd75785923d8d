"""Checkpoints of tensors on a mesh by `torch.distributed.checkpoint`: each process saves and loads its own shards.

    import torch.distributed.checkpoint as dcp
    from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner

    dcp.save(state_dict, checkpoint_id=path, planner=SPMDSavePlanner())
    dcp.load(state_dict, checkpoint_id=path, planner=SPMDLoadPlanner())

A checkpoint of one mesh can be loaded on any other mesh.
"""

from .manager import CheckpointManager as CheckpointManager
from .planners import SPMDLoadPlanner as SPMDLoadPlanner
from .planners import SPMDSavePlanner as SPMDSavePlanner
from .util import prime_optimizer as prime_optimizer
