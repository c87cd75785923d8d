"""`Adam` that skips a step on the device."""

import torch

from .skipping import SkipsOnDevice


class Adam(SkipsOnDevice, torch.optim.Adam):
    """`torch.optim.Adam` whose `step` takes `found_inf`: if `found_inf` is not zero, nothing changes.

    Takes the arguments of `torch.optim.Adam`, and is always `fused`: all parameters are one operation.

    >>> import torch, torch_xla
    >>> from torch_xla.amp import syncfree
    >>> weight = torch.ones(2, device="xla", requires_grad=True)
    >>> optimizer = syncfree.Adam([weight], lr=0.5)
    >>> weight.sum().backward()
    >>> optimizer.step(found_inf=torch.ones((), device="xla"))
    >>> weight.tolist()
    [1.0, 1.0]
    """
