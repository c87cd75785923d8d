"""`torch.distributed` on `xla`: importing this registers the backend "xla" and `init_method="xla://"`.

    import torch.distributed as dist
    import torch_xla.distributed.xla_backend

    dist.init_process_group("xla", init_method="xla://")

In processes that `torch_xla.launch` or `torchrun` started, `xla://` needs nothing else. Other processes pass `env://`
with `MASTER_ADDR` and `MASTER_PORT`, or their own store, with `rank` and `world_size`, before anything uses a device.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed

from .._engine import distributed
from .._engine.compat.names.torch_distributed import OptionsOfBackend
from .._engine.distributed import XlaGroup


class ProcessGroupXla(XlaGroup):
    """A group of processes of the program, created by `torch.distributed`. Its collectives are recorded."""

    class Options(OptionsOfBackend):
        """The options of `torch.distributed.new_group(pg_options=...)`: `timeout`, a `timedelta`, which has no effect.

        `XLA_COLLECTIVE_TIMEOUT` sets the time that a collective waits for the other processes.

        >>> from torch_xla.distributed.xla_backend import ProcessGroupXla
        >>> ProcessGroupXla.Options().backend
        'xla'
        """

        def __init__(self, timeout: timedelta = timedelta(minutes=30)) -> None:
            super().__init__("xla", timeout)


distributed.register_process_group(ProcessGroupXla)


def new_xla_process_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: object = None,
) -> Any:
    """Return a process group over `ranks`, in this order, by default over all ranks.

    Every process of the program must call it. The arguments are those of `torch.distributed.new_group`. `pg_options`
    may also be `{"xla_pg_options": {"mesh": groups}}`, a list of lists of ranks: the groups of processes that
    communicate at the same time. By default the other processes are divided into groups of the same size, in order.

    Raises `NotImplementedError` for `"spmd": True` in these options: under SPMD one process drives all devices, and
    tensors are divided over `torch_xla.distributed.spmd.Mesh`. Raises `ValueError` if no group of the mesh is `ranks`,
    and `TypeError` for other options.
    """
    given, mesh = pg_options, None
    if isinstance(pg_options, dict):
        if set(pg_options) != {"xla_pg_options"} or not set(pg_options["xla_pg_options"]) <= {"mesh", "spmd"}:
            raise TypeError(
                f"new_xla_process_group(): expected pg_options of the form "
                f'{{"xla_pg_options": {{"mesh": [[0, 1], [2, 3]]}}}}, got {pg_options!r}'
            )
        if pg_options["xla_pg_options"].get("spmd"):
            raise NotImplementedError(
                "new_xla_process_group(): under SPMD one process drives all devices, and no group of processes "
                "exchanges anything. Divide tensors over a torch_xla.distributed.spmd.Mesh"
            )
        given, mesh = None, pg_options["xla_pg_options"].get("mesh")
    group: Any = torch.distributed.new_group(None if ranks is None else list(ranks), timeout, backend, given)
    if mesh is not None and isinstance(group, ProcessGroupXla):
        group.exchange_in(mesh)
    return group
