"""What of PyTorch we replace on import: the whole list, each with its reason."""

import copy
import functools
from typing import Any

import torch

from ..private import torch as private
from .kernels import note_default_dtype
from .storages import patch_storages


def apply_patches() -> None:
    """Applies every patch. Each leaves all other devices as they are."""
    # `is_xla` is a C++ test for a device type that PyTorch gave the name before us.
    torch.Tensor.is_xla = property(_is_xla)  # type: ignore[assignment, misc, method-assign]
    # Every device with a module of its own has such a method (`.cuda()`); PyTorch's generator of them refuses the
    # name, because `is_xla` exists.
    torch.Tensor.xla = _tensor_xla  # type: ignore[attr-defined]
    torch.nn.Module.xla = _module_xla  # type: ignore[attr-defined]
    # A module that moves between the host and `xla` keeps its Parameter objects: tied weights stay tied, and an
    # optimizer made before the move keeps training them. PyTorch makes new Parameters between unlike devices.
    torch.nn.Module._apply = _apply_keeping_parameters(torch.nn.Module._apply)  # type: ignore[method-assign, assignment]
    # `copy.copy` of a CPU tensor shares the storage; PyTorch's own path would copy an `xla` tensor through the host.
    torch.Tensor.__copy__ = _shallow_copy  # type: ignore[attr-defined]
    # Storages of bytes, deep copies and pickles.
    patch_storages()
    # What a recorded call means may depend on the default dtype; asking for it at every call would cost more.
    private.after_default_dtype_changes(note_default_dtype)
    note_default_dtype()


def _is_xla(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "xla"


def _tensor_xla(self: torch.Tensor, device: Any = None, non_blocking: bool = False) -> torch.Tensor:
    """A copy of this tensor on an `xla` device."""
    return self.to("xla" if device is None else _named(device), non_blocking=non_blocking)


def _module_xla(self: torch.nn.Module, device: Any = None) -> torch.nn.Module:
    """Moves the parameters and buffers of this module to an `xla` device."""
    return self.to("xla" if device is None else _named(device))


def _named(device: Any) -> Any:
    return torch.device("xla", device) if isinstance(device, int) else device


def _shallow_copy(self: torch.Tensor) -> torch.Tensor:
    if self.device.type != "xla":
        return copy._reconstruct(self, None, *self.__reduce_ex__(4))  # type: ignore[attr-defined, no-any-return]
    alias = self.detach()
    result: torch.Tensor = alias if type(self) is torch.Tensor else alias.as_subclass(type(self))
    result.requires_grad_(self.requires_grad)
    result.__dict__.update(self.__dict__)
    return result


def _apply_keeping_parameters(original: Any) -> Any:
    @functools.wraps(original)
    def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        if torch.__future__.get_swap_module_params_on_conversion() or not _moves_to_or_from_xla(self, fn):
            return original(self, fn, recurse)  # type: ignore[no-any-return]
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return original(self, fn, recurse)  # type: ignore[no-any-return]
        except RuntimeError as error:
            if "swap" not in str(error):
                raise
            # Something else holds on to a parameter (a graph that is still alive): then PyTorch's own way it is.
            torch.__future__.set_swap_module_params_on_conversion(False)
            return original(self, fn, recurse)  # type: ignore[no-any-return]
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    return _apply


def _moves_to_or_from_xla(module: torch.nn.Module, fn: Any) -> bool:
    parameter = next(module.parameters(), None)
    if parameter is None or parameter.device.type == "meta" or type(parameter) is not torch.nn.Parameter:
        return False
    with torch.no_grad():
        probe = fn(torch.empty(0, dtype=parameter.dtype, device=parameter.device))
    return isinstance(probe, torch.Tensor) and (probe.device.type == "xla") != (parameter.device.type == "xla")
