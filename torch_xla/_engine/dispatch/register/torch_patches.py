"""Apply the replacements of PyTorch's functions that belong to no other room; `compat/patch_list.py` says why."""

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from ...compat import patch_list
from ...compat.abi import answer_calls_of
from ...compat.names import torch as private
from ...compat.names import torch_refs
from ...tensor.torch_generator import generator_for
from ..ops.activation_checkpointing import patch_checkpoints
from ..ops.optimizer_steps import as_one_adam, as_one_sgd
from ..ops.packed_attention import choosing_packed, unpadded
from ..optimizer_state_init import with_first_momentum
from ..recording_kernel import note_default_dtype
from .autocast import set_default_dtype, with_default_dtype
from .deferred_name import BESIDE_ANOTHER
from .dlpack_protocol import patch_exchange
from .events_and_streams import event_for, stream_for
from .nn_modules import keeping_parameters
from .torchscript import patch_scripts
from .untyped_storages import patch_storages

# Called with `True` before and `False` after every backward pass, while a profiler runs.
around_backward: list[Callable[[bool], None]] = []


def apply_patches() -> None:
    """Apply the patches of the import."""
    patch_list.is_xla.put(property(_is_xla))
    patch_list.tensor_xla.put(_tensor_xla)
    patch_list.module_xla.put(_module_xla)
    patch_list.module_apply.wrap(keeping_parameters)
    patch_storages()
    patch_scripts()
    patch_exchange()
    # PyTorch makes no generators for a backend in Python; its events and streams of one cannot be waited for.
    answer_calls_of(torch.Generator, generator_for)
    answer_calls_of(torch.Event, event_for)
    answer_calls_of(torch.Stream, stream_for)
    patch_checkpoints()
    patch_list.autocast.wrap(with_default_dtype)
    if private.backend_name() == "xla":
        set_default_dtype()
    patch_list.new_tensor.wrap(_on_own_device)
    patch_list.pin_memory.wrap(_pinning)
    patch_list.is_pinned.wrap(_pinned)
    patch_list.record_stream.wrap(_in_the_one_stream)
    for patch in patch_list.calls_for_elements.values():
        patch.wrap(_on_the_host)
    patch_list.run_backward.wrap(_in_the_callers_thread)
    patch_list.devices_of_flex_attention.wrap(_any_of_ours)
    patch_list.kernel_of_jagged_attention.wrap(choosing_packed)
    patch_list.padded_heads.wrap(unpadded)
    patch_list.first_momentum.wrap(with_first_momentum)
    patch_list.multi_tensor_adam.wrap(as_one_adam)
    patch_list.multi_tensor_sgd.wrap(as_one_sgd)
    patch_list.library_impl.wrap(_for_our_key_too)
    for patch in patch_list.default_dtype.values():
        patch.wrap(_noting)
    note_default_dtype()
    torch_refs.call_references_without_dynamo()


def _noting(setter: Callable[[object], None]) -> Callable[[object], None]:
    def set_and_note(argument: object) -> None:
        setter(argument)
        note_default_dtype()

    return set_and_note


def _is_xla(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "xla"


def _tensor_xla(self: torch.Tensor, device: object = None, non_blocking: bool = False) -> torch.Tensor:
    """Return a copy of this tensor on an `xla` device."""
    return self.to("xla" if device is None else _named(device), non_blocking=non_blocking)


def _module_xla(self: torch.nn.Module, device: object = None) -> torch.nn.Module:
    """Move the parameters and buffers of this module to an `xla` device."""
    return self.to("xla" if device is None else _named(device))


def _named(device: object) -> Any:
    return torch.device("xla", device) if isinstance(device, int) else device


def _on_own_device(original: Any) -> object:
    @functools.wraps(original)
    def new_tensor(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.device.type == "xla" and kwargs.get("device") is None:
            kwargs["device"] = self.device
        return original(self, *args, **kwargs)  # type: ignore[no-any-return]

    return new_tensor


def _in_the_one_stream(original: Any) -> object:
    @functools.wraps(original)
    def record_stream(self: torch.Tensor, s: Any) -> None:
        if self.device.type != "xla":
            original(self, s)

    return record_stream


def _pinning(original: Any) -> object:
    @functools.wraps(original)
    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if device is not None and torch.device(device).type != "xla":
            return original(self, device)  # type: ignore[no-any-return]
        if torch.cuda.is_available():
            return torch.ops.aten._pin_memory(self, torch.device("cuda"))  # type: ignore[no-any-return]
        return self  # PJRT reads any memory of the host

    return pin_memory


def _pinned(original: Any) -> object:
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


def _any_of_ours(original: Any) -> object:
    """Return PyTorch's check with `xla` in its set of devices. The code stays PyTorch's, so Dynamo traces it."""
    named = tuple(each | {"xla"} if isinstance(each, frozenset) else each for each in original.__code__.co_consts)
    return types.FunctionType(original.__code__.replace(co_consts=named), original.__globals__, original.__name__)


def _for_our_key_too(original: Any) -> object:
    @functools.wraps(original)
    def impl(self: torch.library.Library, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any) -> object:
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


def _beside_ours(original: Any, *args: Any, **kwargs: Any) -> object:
    try:
        return original(*args, **kwargs)
    except RuntimeError as error:
        if "opt_parent_stream" in str(error):
            error.add_note(BESIDE_ANOTHER)
        raise


def _in_the_callers_thread(original: Any) -> object:
    @functools.wraps(original)
    def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> object:
        if not any(isinstance(output, torch.Tensor) and output.device.type == "xla" for output in outputs):
            return _beside_ours(original, outputs, *args, **kwargs)
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
