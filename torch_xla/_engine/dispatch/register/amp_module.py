"""`torch.xla.amp`: what `torch.cuda.amp` has, for `xla`. `torch.amp` has the same, given the device."""

import functools
import types
from typing import Any

import torch


class autocast(torch.autocast):  # noqa: N801
    """`torch.autocast("xla")`."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True) -> None:
        super().__init__("xla", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("xla")`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("xla", *args, **kwargs)


module = types.ModuleType("torch.xla.amp", __doc__)
vars(module).update(
    autocast=autocast,
    GradScaler=GradScaler,
    custom_fwd=functools.partial(torch.amp.custom_fwd, device_type="xla"),
    custom_bwd=functools.partial(torch.amp.custom_bwd, device_type="xla"),
)
