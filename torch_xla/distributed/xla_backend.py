"""`torch.distributed` on `xla`: importing this registers the backend "xla" and `init_method="xla://"`.

    import torch.distributed as dist
    import torch_xla.distributed.xla_backend

    dist.init_process_group("xla", init_method="xla://")

In processes that `torch_xla.launch` or `torchrun` started, `xla://` needs nothing else. Others give `env://` with
`MASTER_ADDR` and `MASTER_PORT`, or their own store, and `rank` and `world_size`; then before anything uses a device.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed

from .._engine.distributed import backend
from .._engine.distributed.process_group import XlaGroup


class ProcessGroupXla(XlaGroup):
    """A group of processes of the program. `torch.distributed` makes it; collectives on it are recorded."""


backend.register(ProcessGroupXla)


def new_xla_process_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
) -> Any:
    """A process group over `ranks`, all by default, in the order they have: what `torch.distributed.new_group` gives.

    Every process of the program calls it. The arguments are those of `new_group`. Raises `NotImplementedError` for
    `pg_options`: groups along a mesh are made by `torch.distributed.device_mesh.init_device_mesh("xla", ...)`.
    """
    if pg_options is not None:
        raise NotImplementedError(
            f"new_xla_process_group(): pg_options is {pg_options!r}; groups along a mesh are made by "
            f'torch.distributed.device_mesh.init_device_mesh("xla", shape)'
        )
    return torch.distributed.new_group(None if ranks is None else list(ranks), timeout, backend)
