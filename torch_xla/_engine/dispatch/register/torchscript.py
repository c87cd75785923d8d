"""TorchScript on `xla`: save scripts with their values, load them onto the device, and move them.

PyTorch's C++ reads and writes the memory of storages itself, and on `xla` there is none. So a copy on the CPU is saved;
an archive is loaded onto the CPU and moved.
"""

import copy
import functools
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.nn import Parameter

from ...compat import patch_list
from ...compat.names import torch as private
from ...compat.names import torchscript
from ...tensor import device as devices
from ...transfer import storage_bytes


def patch_scripts() -> None:
    """Replace the C++ functions that save scripts, and `torch.jit.load`."""
    for patch in patch_list.saving_scripts.values():
        patch.wrap(_saving)
    patch_list.serialize_script.wrap(_serializing)
    patch_list.load_script.wrap(_loading)


def _saving(original: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(script: object, *args: object, **kwargs: object) -> Any:
        return original(_to_save(script), *args, **kwargs)

    return save


def _serializing(original: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def serialize(self: object, script: object, *args: object, **kwargs: object) -> object:
        return original(self, _to_save(script), *args, **kwargs)

    return serialize


def _to_save(found: object) -> Any:
    """Return the script itself if nothing of it is on `xla`, else a copy on the CPU."""
    if not devices.existing_devices():
        return found
    constant = next((tensor for _, tensor in torchscript.constants_of(found) if _is_ours(tensor)), None)
    if constant is not None:
        raise RuntimeError(
            f"cannot save a script with a constant on {constant.device}, a tensor of size {tuple(constant.shape)}. "
            "Tracing makes constants of the tensors that a function closes over, freezing of weights. Trace or freeze "
            "with everything on the CPU (`model.cpu()`), save that, and load it by "
            "`torch.jit.load(file, map_location='xla')`."
        )
    if isinstance(found, torch.jit.ScriptFunction) or not any(map(_is_ours, _tensors_of(found))):
        return found
    copied = copy.deepcopy(found)
    on_the_host = _Host()
    # The values come from the script itself, so that shared memory is recognized.
    originals = iter(list(_tensors_of(found)))
    for module in torchscript.modules_of(copied):
        torchscript.replace(module, lambda _: on_the_host(next(originals)))
    return copied


def _is_ours(tensor: Tensor) -> bool:
    return tensor.device.type == "xla"


def _tensors_of(found: object) -> Iterator[Tensor]:
    for module in torchscript.modules_of(found):
        for _, value in torchscript.slots_of(module):
            yield from torchscript.tensors_in(value)


class _Host:
    """Copy tensors to the CPU. Tensors that share memory share it there, too."""

    def __init__(self) -> None:
        self._storages: dict[UntypedStorage, UntypedStorage] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        if not _is_ours(tensor):
            return tensor
        with torch.no_grad():
            if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
                result = tensor.cpu()
            else:
                storage = tensor.untyped_storage()
                if storage not in self._storages:
                    self._storages[storage] = storage_bytes.host_copy(storage)
                host = self._storages[storage]
                result = torch.empty(0, dtype=tensor.dtype, device="cpu")
                result.set_(host, tensor.storage_offset(), tensor.size(), tensor.stride())  # type: ignore[call-overload]
        return result.requires_grad_(tensor.requires_grad)


def _loading(original: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(f: object, map_location: object = None, *args: object, **kwargs: object) -> Any:
        device = torch.device(map_location) if isinstance(map_location, str) else map_location
        if not isinstance(device, torch.device) or device.type != "xla":
            return original(f, map_location, *args, **kwargs)
        loaded = original(f, "cpu", *args, **kwargs)
        there = _Moved(lambda tensor: tensor.to(device))
        for module in torchscript.modules_of(torchscript.object_of(loaded)):
            torchscript.replace(module, there)
        torchscript.replace_constants(torchscript.object_of(loaded), there)
        return loaded

    return load


class _Moved:
    """Move tensors by a function. A tensor that occurs in several places is moved once."""

    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        self._fn = fn
        self._done: dict[Hashable, tuple[Tensor, Tensor]] = {}  # with the tensor before, whose memory keeps its address

    def __call__(self, tensor: Tensor) -> Tensor:
        key: Any = id(tensor)
        if tensor.layout is torch.strided and tensor.numel():
            # An archive has one memory, and several tensors, where the module had one tensor.
            key = tensor.data_ptr(), tensor.dtype, tensor.device, tensor.size(), tensor.stride(), tensor.requires_grad
        if key not in self._done:
            self._done[key] = tensor, self._moved(tensor)
        return self._done[key][1]

    def _moved(self, tensor: Tensor) -> Tensor:
        with torch.no_grad():
            moved = self._fn(tensor).detach().requires_grad_(tensor.requires_grad)
            if isinstance(tensor, Parameter):
                moved = Parameter(moved, tensor.requires_grad)
            if tensor.grad is not None:
                moved.grad = self._fn(tensor.grad).requires_grad_(tensor.grad.requires_grad)
        return moved


def move_parameters(
    module: torch.jit.ScriptModule, fn: Callable[[Tensor], Tensor], is_moved: Callable[[Tensor], bool], recurse: bool
) -> None:
    """Replace the parameters of a script module, and of inner ones, by the results of `fn`.

    They belong to C++, which would not see that one has moved; and PyTorch gives none to a script that was loaded,
    whose parameters are plain tensors.
    """
    there = _Moved(fn)
    for each in module.modules() if recurse else (module,):
        if isinstance(each, torch.jit.ScriptModule):
            parameters = private.parameters_of(each)
            for name, parameter in list(parameters.items()):
                if is_moved(parameter):
                    parameters[name] = there(parameter)
