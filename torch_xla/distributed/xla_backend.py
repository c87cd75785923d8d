"""`torch.distributed` on `xla`: importing this registers the backend "xla" and `init_method="xla://"`.

    import torch.distributed as dist
    import torch_xla.distributed.xla_backend

    dist.init_process_group("xla", init_method="xla://")

In processes that `torch_xla.launch` or `torchrun` started, `xla://` needs nothing else. Others give `env://` with
`MASTER_ADDR` and `MASTER_PORT`, or their own store, and `rank` and `world_size`; then before anything uses a device.
"""

from .._engine.distributed import backend
from .._engine.distributed.process_group import XlaGroup


class ProcessGroupXla(XlaGroup):
    """A group of processes of the program. `torch.distributed` makes it; collectives on it are recorded."""


backend.register(ProcessGroupXla)
