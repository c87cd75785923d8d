"""`torch_xla.amp.autocast`, the older spelling of `torch.autocast("xla")`."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class autocast(torch.autocast):  # noqa: N801
    """A block whose operations compute in a lower precision where that is safe: mostly products and convolutions.

    `device` is any `xla` device. `dtype` is `torch.bfloat16` (the default) or `torch.float16`. The lists of operators
    are those of PyTorch for CUDA. It works on every platform, including the CPU. It is also a decorator.

    >>> import torch, torch_xla
    >>> from torch_xla.amp import autocast
    >>> weight = torch.ones(2, 2, device="xla")
    >>> with autocast(torch_xla.device()):
    ...     product = weight @ weight
    >>> product.dtype
    torch.bfloat16
    """

    def __init__(
        self,
        device: torch.device | str,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool = True,
    ) -> None:
        named = torch.device(device)
        if named.type != "xla":
            raise ValueError(
                f"torch_xla.amp.autocast is for xla devices, not {named}; use torch.autocast({named.type!r})"
            )
        super().__init__(named.type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def __call__(self, func: Callable[P, R]) -> Callable[P, R]:
        """Return `func`, run in such a block."""

        @functools.wraps(func)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return func(*args, **kwargs)

        return inside
