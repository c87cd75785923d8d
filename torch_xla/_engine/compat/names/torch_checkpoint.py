"""Every private name of PyTorch's distributed checkpoints that the engine borrows, and why."""

import importlib

import torch

# Programs of PyTorch/XLA 2 find them under `distributed_checkpoint._helpers`; PyTorch keeps them to itself.
from torch.distributed._shard._utils import narrow_tensor_by_index as narrow_tensor_by_index
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans as dedup_save_plans
from torch.distributed.checkpoint._nested_dict import flatten_state_dict as flatten_state_dict
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict as unflatten_state_dict
from torch.distributed.checkpoint._traverse import set_element as set_element

# PyTorch's functions for plain tensors; a subclass of `DTensor` is asked for its own items.
from torch.distributed.checkpoint.planner_helpers import _create_chunk_from_tensor, _create_write_item_for_tensor

# Public functions of PyTorch take a `DTensor` apart only while they save it.
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ...remote_files import files_at as remote_files


def write_items(name: str, tensor: torch.Tensor) -> list[object]:
    """Return the checkpoint's write items of a plain tensor: the whole tensor."""
    return [_create_write_item_for_tensor(name, tensor)]


def chunks(tensor: torch.Tensor) -> list[object]:
    """Return the chunks of a plain tensor: the whole tensor as one."""
    return [_create_chunk_from_tensor(tensor)]


def offset_of_local(tensor: torch.distributed.tensor.DTensor) -> tuple[int, ...]:
    """Return where the part of this process begins in a distributed tensor."""
    return tuple(compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1])


__all__ = [
    "chunks", "dedup_save_plans", "flatten_state_dict", "narrow_tensor_by_index", "offset_of_local", "remote_files",
    "set_element", "unflatten_state_dict", "write_items",
]  # fmt: skip


def remote_reader(address: str) -> object:
    """Return PyTorch's reader of checkpoints at an address."""
    return importlib.import_module("torch.distributed.checkpoint._fsspec_filesystem").FsspecReader(address)


def remote_writer(address: str, **options: object) -> object:
    """Return PyTorch's writer of checkpoints to an address."""
    return importlib.import_module("torch.distributed.checkpoint._fsspec_filesystem").FsspecWriter(address, **options)
