"""The base class of the optimizers that skip steps on the device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class SkipsOnDevice:
    """An optimizer of PyTorch in its fused form, which reads on the device whether to skip a step."""

    def __init__(self, params: object, *args: object, **kwargs: object) -> None:
        for name in ("fused", "foreach"):
            if kwargs.get(name) not in (None, name == "fused"):
                raise ValueError(f"this optimizer is always fused; leave out {name}={kwargs[name]!r}")
            kwargs.pop(name, None)
        optimizer: Any = super()
        optimizer.__init__(params, *args, fused=True, **kwargs)

    def step(self, closure: Callable[[], Any] | None = None, found_inf: Tensor | None = None) -> Any:
        """Take one step, or none if `found_inf` (one element, on the parameters' device) is not zero."""
        optimizer: Any = super()
        if found_inf is None:
            return optimizer.step(closure)
        # PyTorch's `GradScaler` sets these on an optimizer that decides by itself whether to skip.
        self.found_inf = found_inf.to(torch.float32).reshape(())
        self.grad_scale: Tensor | None = None
        try:
            return optimizer.step(closure)
        finally:
            del self.found_inf, self.grad_scale
