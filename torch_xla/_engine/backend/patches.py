"""What of PyTorch we replace on import, each with its reason. The list is whole but for `torch.compile` (`dynamo/`)."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..dispatch.first_states import with_first_momentum
from ..dispatch.kernels import note_default_dtype
from ..operators.checkpointing import patch_checkpoints
from ..private import torch as private
from ..record.torch_generator import generator_for
from .autocast import set_default_dtype, with_default_dtype
from .dlpack_protocol import patch_exchange
from .modules import keeping_parameters
from .storages import patch_storages

# Called with `True` before and `False` after every backward pass, while somebody profiles.
around_backward: list[Callable[[bool], None]] = []


def apply_patches() -> None:
    """Applies every patch. Each leaves all other devices as they are."""
    # `is_xla` is a C++ test for a device type that PyTorch gave the name before us.
    setattr(torch.Tensor, "is_xla", property(_is_xla))  # noqa: B010
    # Every device with a module of its own has such a method (`.cuda()`); PyTorch's generator of them refuses the
    # name, because `is_xla` exists.
    torch.Tensor.xla = _tensor_xla  # type: ignore[attr-defined]
    torch.nn.Module.xla = _module_xla  # type: ignore[attr-defined]
    # A module that moves between the host and `xla` keeps its Parameter objects: tied weights stay tied, and an
    # optimizer made before the move keeps training them. PyTorch makes new Parameters between unlike devices.
    torch.nn.Module._apply = keeping_parameters(torch.nn.Module._apply)  # type: ignore[method-assign]
    # Storages of bytes, copies and pickles.
    patch_storages()
    # NumPy, JAX and others may take tensors as they are.
    patch_exchange()
    # PyTorch makes no generators for a backend in Python.
    private.wrap_generator_class(generator_for)
    # Checkpoints save memory although the whole step is one program.
    patch_checkpoints()
    # PyTorch's default for devices it does not know is float16; that of `xla` is documented as bfloat16.
    torch.autocast.__init__ = with_default_dtype(torch.autocast.__init__)  # type: ignore[method-assign]
    set_default_dtype()
    # PyTorch makes the result on the current ordinal instead of that of the tensor.
    torch.Tensor.new_tensor = _on_own_device(torch.Tensor.new_tensor)  # type: ignore[method-assign]
    # PyTorch asks the accelerator for pinned memory, and `xla` becomes the accelerator by being imported: a loader with
    # `pin_memory=True` must work for those who never use it.
    torch.Tensor.pin_memory = _pinning(torch.Tensor.pin_memory)  # type: ignore[method-assign]
    torch.Tensor.is_pinned = _pinned(torch.Tensor.is_pinned)  # type: ignore[method-assign]
    # PyTorch takes streams of its own class alone. A device of ours has one, so memory is given back in its order.
    torch.Tensor.record_stream = _in_the_one_stream(torch.Tensor.record_stream)  # type: ignore[method-assign]
    # PyTorch calls a Python function for each element in the memory of the host alone.
    for name in ("apply_", "map_", "map2_"):
        setattr(torch.Tensor, name, _on_the_host(getattr(torch.Tensor, name)))
    # Recording is Python, and Python runs one thread at a time: PyTorch's backward thread for our device would only
    # take turns with the caller's. Without it a step is recorded faster, and the user's line is on the stack.
    private.wrap_backward(_in_the_callers_thread)
    # PyTorch lists the devices that may attend by a function of the user's; the operator itself runs on every one.
    private.wrap_devices_of_flex_attention(_any_of_ours)
    # The first step of SGD computes its momentum in another way than all others, which would be a program of its own.
    torch.optim.SGD._init_group = with_first_momentum(torch.optim.SGD._init_group)  # type: ignore[method-assign]
    # Libraries give operators an implementation for "XLA", which is PyTorch's key of another backend by our name.
    torch.library.Library.impl = _for_our_key_too(torch.library.Library.impl)  # type: ignore[method-assign]
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


def _on_own_device(original: Any) -> Any:
    @functools.wraps(original)
    def new_tensor(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.device.type == "xla" and kwargs.get("device") is None:
            kwargs["device"] = self.device
        return original(self, *args, **kwargs)  # type: ignore[no-any-return]

    return new_tensor


def _in_the_one_stream(original: Any) -> Any:
    @functools.wraps(original)
    def record_stream(self: torch.Tensor, s: Any) -> None:
        if self.device.type != "xla":
            original(self, s)

    return record_stream


def _pinning(original: Any) -> Any:
    @functools.wraps(original)
    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if device is not None and torch.device(device).type != "xla":
            return original(self, device)  # type: ignore[no-any-return]
        if torch.cuda.is_available():
            return torch.ops.aten._pin_memory(self, torch.device("cuda"))  # type: ignore[no-any-return]
        return self  # PJRT reads any memory of the host

    return pin_memory


def _pinned(original: Any) -> Any:
    @functools.wraps(original)
    def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
        if device is not None and torch.device(device).type != "xla":
            return original(self, device)  # type: ignore[no-any-return]
        return torch.cuda.is_available() and bool(torch.ops.aten.is_pinned(self, torch.device("cuda")))

    return is_pinned


def _on_the_host(original: Any) -> Any:
    @functools.wraps(original)
    def method(self: torch.Tensor, *args: Any) -> torch.Tensor:
        if self.device.type != "xla":
            return original(self, *args)  # type: ignore[no-any-return]
        values = self.cpu()
        original(values, *(a.cpu() if isinstance(a, torch.Tensor) and a.device.type == "xla" else a for a in args))
        return self.copy_(values)

    return method


def _any_of_ours(original: Any) -> Any:
    @functools.wraps(original)
    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "xla":
            original(query, key, value)

    return validate_device


def _for_our_key_too(original: Any) -> Any:
    @functools.wraps(original)
    def impl(self: torch.library.Library, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any) -> Any:
        result = original(self, op_name, fn, dispatch_key, **kwargs)
        if (dispatch_key or self.dispatch_key) == "XLA":
            if self.dispatch_key:
                # A library of one key takes no kernel for another: its twin lives as long as it does.
                twins = self.__dict__.setdefault("_xla_twins", [])
                if not twins:
                    twins.append(torch.library.Library(self.ns, "IMPL", "PrivateUse1"))
                self = twins[0]
            original(self, op_name, fn, "PrivateUse1", **kwargs)
        return result

    return impl


def _in_the_callers_thread(original: Any) -> Any:
    @functools.wraps(original)
    def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(output, torch.Tensor) and output.device.type == "xla" for output in outputs):
            return original(outputs, *args, **kwargs)
        watchers = tuple(around_backward)
        for watcher in watchers:
            watcher(True)
        try:
            with torch.autograd.set_multithreading_enabled(False):
                return original(outputs, *args, **kwargs)
        finally:
            for watcher in watchers:
                watcher(False)

    return run_backward
