"""Four virtual devices behind one ordinal, in this process, beside the devices that it has."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_xla._engine.ir.sharding import Sharding
from torch_xla._engine.runtime import abstract_devices, platform
from torch_xla._engine.tensor.device import Device
from torch_xla._engine.tensor.storage import wrap
from torch_xla._engine.tensor.upload import upload

# The four are a grid of 2 × 2.
ROWS = Sharding(((0,),))
COLUMNS = Sharding(((), (1,)))
ALL = Sharding(((0, 1),))


@contextmanager
def spread_device() -> Iterator[Device]:
    """Make four devices those of this process within a block, and yield a device that represents all of them."""
    four = abstract_devices.virtual_devices(4)
    device = Device(0)
    device.spread_over(four)
    with platform.standing_in(four):
        yield device


def on(device: Device, host: torch.Tensor, sharding: Sharding | None = None) -> torch.Tensor:
    """A tensor on `device`, divided so."""
    return wrap(upload(host, device, sharding))
