"""`DeviceMesh("xla", ...)`: a mesh of processes, or of devices that XLA divides tensors over."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from ..compat.names import torch_distributed
from ..dispatch.register import nn_modules
from ..processes import identity, spmd_mode
from ..runtime import platform
from ..tensor.device import current_index, device_at
from ..tensor.random_state import state_of_part
from ..tensor.torch_generator import state_of
from .process_group import XlaGroup


def means_processes() -> bool:
    """Return whether a mesh is one of processes: the program has several processes with one device each.

    The result is also true for a single process that created a process group and has one device.
    """
    if spmd_mode.is_on() or identity.process_count() > 1:
        return not spmd_mode.is_on()
    return isinstance(dist.group.WORLD, XlaGroup) and len(platform.local_devices()) == 1


def install(divider: str) -> None:
    """Give meshes of processes their groups. For other meshes, let the module `divider` divide tensors.

    It is imported once a mesh exists, because it imports a part of PyTorch that takes half a second.
    """

    def divides() -> Sequence[int]:
        importlib.import_module(divider).serve_meshes_of_devices()
        return [platform.ordinal_of(device) for device in platform.local_devices()]

    torch_distributed.give_meshes_groups(means_processes, divides, nn_modules.move, drawing)


@contextmanager
def drawing(first: int, generator: Any) -> Iterator[None]:
    """Draw this process's shard of a random tensor within this block; the shard begins at element `first`.

    Processes with different shards draw different numbers, processes with the same shard the same ones, and all
    continue
    from one state. Operators do not receive `generator`, but draw from it.
    """
    used = device_at(current_index()).generator
    source = used if generator is None else state_of(generator)
    if source is None:
        raise RuntimeError(f"Expected a 'xla' device type for generator but found '{generator.device.type}'")
    kept, state = used.state, source.draw()
    after = source.state
    used.state = state_of_part(state, first)
    try:
        yield
    finally:
        used.state = kept
        source.state = after
