"""What the optimizers here share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class SkipsOnDevice:
    """An optimizer of PyTorch in its fused form, which can be told on the device to skip a step."""

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("fused", "foreach"):
            if kwargs.get(name) not in (None, name == "fused"):
                raise ValueError(f"this optimizer is always fused; leave out {name}={kwargs[name]!r}")
            kwargs.pop(name, None)
        super().__init__(params, *args, fused=True, **kwargs)

    @contextmanager
    def skipping(self, found_inf: Tensor | None) -> Iterator[None]:
        """A block in which `step` does nothing where `found_inf` is not zero."""
        if found_inf is None:
            yield
            return
        self.found_inf = found_inf.to(torch.float32).reshape(())
        self.grad_scale: Tensor | None = None
        try:
            yield
        finally:
            del self.found_inf, self.grad_scale
