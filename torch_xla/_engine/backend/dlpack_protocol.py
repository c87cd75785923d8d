"""`numpy.from_dlpack(x)`, `jax.numpy.from_dlpack(x)`: PyTorch lets nobody but CUDA devices offer their memory there."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..host import dlpack
from ..record.storage import value_of

_HOST, _CUDA, _OTHER = 1, 2, 12


def patch_exchange() -> None:
    """Lets tensors on `xla` be taken by every library that speaks DLPack; other devices stay as they are."""
    torch.Tensor.__dlpack__ = _offering(torch.Tensor.__dlpack__)  # type: ignore[method-assign]
    torch.Tensor.__dlpack_device__ = _placing(torch.Tensor.__dlpack_device__)  # type: ignore[method-assign]


def _offering(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __dlpack__(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if self.device.type != "xla":
            return original(self, *args, **kwargs)
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if self.is_conj():
            raise BufferError("Can't export tensors with the conjugate bit set, use tensor.resolve_conj()")
        asked = kwargs.get("dl_device")
        if asked is not None and tuple(asked) != tuple(self.__dlpack_device__()):
            raise BufferError(
                f"{self.device} offers its memory as DLPack device {self.__dlpack_device__()}, not {asked}"
            )
        return dlpack.export(self.clone() if kwargs.get("copy") else self)

    return __dlpack__


def _placing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __dlpack_device__(self: torch.Tensor) -> Any:  # noqa: N807
        if self.device.type != "xla":
            return original(self)
        target = value_of(self).device.target
        if target.is_host:
            return _HOST, 0
        return (_CUDA if target.platform in ("gpu", "cuda") else _OTHER), target.device.local_hardware_id or 0

    return __dlpack_device__
