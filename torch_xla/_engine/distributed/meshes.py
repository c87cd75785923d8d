"""What a `DeviceMesh("xla", …)` is made of: processes, or devices that XLA divides tensors over."""

import importlib
from collections.abc import Sequence

from ..backend import modules
from ..client import platform, processes, virtual
from ..private import c10d


def means_processes() -> bool:
    """Whether a mesh is one of processes: in a program of several, of which each has a device of its own."""
    return processes.process_count() > 1 and not virtual.is_on()


def install(divider: str) -> None:
    """Gives meshes of processes their groups. For others the module `divider` is imported: it divides the tensors.

    Once a mesh exists, that is: it imports a part of PyTorch that takes half a second.
    """

    def divides() -> Sequence[int]:
        importlib.import_module(divider)
        return [platform.ordinal_of(device) for device in platform.local_devices()]

    c10d.give_meshes_groups(means_processes, divides, modules.move)
