"""`numpy.from_dlpack(x)` and `torch.to_dlpack(x)`, which PyTorch offers for CPU and CUDA alone."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ...compat import patch_list
from ...compat.names import torch as private
from ...tensor.storage import value_of
from ...transfer import dlpack

_HOST, _CUDA, _OTHER = 1, 2, 12


def patch_exchange() -> None:
    """Let every library that supports DLPack import tensors on `xla`; other devices do not change."""
    patch_list.dlpack.wrap(_offering)
    patch_list.dlpack_device.wrap(_placing)
    patch_list.to_dlpack.wrap(_exporting)
    private.give_default_device(torch.asarray)
    patch_list.asarray.wrap(_arranging)


def _offering(original: Callable[..., Any]) -> Callable[..., object]:
    @functools.wraps(original)
    def __dlpack__(self: torch.Tensor, *args: Any, **kwargs: Any) -> object:  # noqa: N807
        if self.device.type != "xla":
            return original(self, *args, **kwargs)
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if self.is_conj():
            raise BufferError("Can't export tensors with the conjugate bit set, use tensor.resolve_conj()")
        stream = kwargs.get("stream", args[0] if args else None)
        if stream is not None and type(stream) is not int:
            raise TypeError(f"stream must be an int or None, not {type(stream).__name__}")
        asked = kwargs.get("dl_device")
        if asked is not None and tuple(asked) != tuple(self.__dlpack_device__()):
            raise BufferError(
                f"{self.device} offers its memory as DLPack device {self.__dlpack_device__()}, not {asked}"
            )
        return dlpack.export(self.clone() if kwargs.get("copy") else self)

    return __dlpack__


def _exporting(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def to_dlpack(tensor: torch.Tensor) -> object:
        is_ours = isinstance(tensor, torch.Tensor) and tensor.device.type == "xla"
        return tensor.__dlpack__() if is_ours else original(tensor)

    return to_dlpack


def _arranging(original: Callable[..., Any]) -> Callable[..., object]:
    @functools.wraps(original)
    def asarray(obj: Any, **kwargs: Any) -> Any:
        if dlpack.is_capsule(obj):
            device = kwargs.get("device")
            if dlpack.is_lent(obj) if device is None else torch.device(device).type == "xla":
                obj = dlpack.adopt(obj)
                if device is not None and torch.device(device).index is None:
                    kwargs["device"] = obj.device
        return original(obj, **kwargs)

    return asarray


def _placing(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def __dlpack_device__(self: torch.Tensor) -> Any:  # noqa: N807
        if self.device.type != "xla":
            return original(self)
        target = value_of(self).device.target
        if target.is_host:
            return _HOST, 0
        return (_CUDA if target.platform in ("gpu", "cuda") else _OTHER), target.device.local_hardware_id or 0

    return __dlpack_device__
