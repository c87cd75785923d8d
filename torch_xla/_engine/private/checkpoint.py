"""Every private name of PyTorch's distributed checkpoints that is borrowed, and why."""

# Programs of PyTorch/XLA 2 find them under `distributed_checkpoint._helpers`; PyTorch keeps them to itself.
from torch.distributed._shard._utils import narrow_tensor_by_index as narrow_tensor_by_index
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans as dedup_save_plans
from torch.distributed.checkpoint._nested_dict import flatten_state_dict as flatten_state_dict
from torch.distributed.checkpoint._traverse import set_element as set_element

__all__ = ["dedup_save_plans", "flatten_state_dict", "narrow_tensor_by_index", "set_element"]
