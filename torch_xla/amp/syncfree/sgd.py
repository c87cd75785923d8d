"""`SGD` that skips a step on the device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .skipping import SkipsOnDevice


class SGD(SkipsOnDevice, torch.optim.SGD):
    """`torch.optim.SGD` whose `step` takes `found_inf`: where that is not zero, nothing changes.

    Takes the arguments of `torch.optim.SGD`, and is always `fused`: all parameters are one operation.

    >>> import torch, torch_xla
    >>> from torch_xla.amp import syncfree
    >>> weight = torch.ones(2, device="xla", requires_grad=True)
    >>> optimizer = syncfree.SGD([weight], lr=0.5)
    >>> weight.sum().backward()
    >>> optimizer.step(found_inf=torch.ones((), device="xla"))
    >>> weight.tolist()
    [1.0, 1.0]
    """

    def step(self, closure: Callable[[], Any] | None = None, found_inf: Tensor | None = None) -> Any:
        """One step, or none where `found_inf` (one element, on the parameters' device) is not zero."""
        with self.skipping(found_inf):
            return super().step(closure)
