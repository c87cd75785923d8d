"""Compute several tensors in one program, or copy them to the host in one batch."""

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch

from ..compat.names.torch import address_of
from ..compile import program_cache
from ..metrics.events import Cause
from ..pytree.nested import replaced
from ..step import pending_graph, sync
from ..step.sync import materialise
from ..step.unlocked_compile import prepare
from ..tensor.storage import value_of
from .host_copies import to_cpu


def compute(tensors: Iterable[torch.Tensor]) -> None:
    """Start the computation of the values of `tensors`, and return when it is started."""
    sync.compute([value_of(tensor) for tensor in tensors])


def compile_only(tensors: Sequence[torch.Tensor]) -> None:
    """Compile the program that reading `tensors` together would run, and run nothing."""
    wanted = pending_graph.graph_of(tensors)
    program = program_cache.program_of(wanted.graph, (), wanted.device.target_of(wanted.graph))
    buffers = [value.buffer for value in wanted.inputs]
    prepare(program, wanted.numbers, buffers, Cause.READ, lambda: wanted.lines)


def call_when_ready(tensor: torch.Tensor, callback: Callable[[], object]) -> None:
    """Start the computation of `tensor`; call `callback` in a separate thread when the value is ready."""
    value = value_of(tensor)
    materialise(value)

    def wait() -> None:
        value.buffer.block_until_ready()  # whose memory no program takes, while the value is held
        callback()

    threading.Thread(target=wait, name="on-ready", daemon=True).start()


def handles(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return a number for the buffer of each tensor, computing it first: equal for tensors on the same memory."""
    return [id(materialise(value_of(tensor))) for tensor in tensors]


def to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy tensors to the CPU. Tensors that are the same view of one memory, such as tied weights, become one copy."""
    compute(tensors)
    copies: dict[Hashable, torch.Tensor] = {}
    results: list[torch.Tensor] = []
    for tensor in tensors:
        key = identity(tensor)
        copy = copies.get(key)
        if copy is None:
            copy = copies[key] = to_cpu(tensor)
        results.append(_like(tensor, copy))
    return results


def identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key for the memory, the view and the dtype of a tensor."""
    place = storage_id(tensor), tensor.shape, tensor.stride(), int(tensor.storage_offset())
    return *place, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def storage_id(tensor: torch.Tensor) -> int:
    """Return a number that all tensors on one storage have in common, and no other living tensor has."""
    number: int = address_of(tensor.untyped_storage())
    return number


def _like(tensor: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copy, tensor.requires_grad)
    return copy.detach().requires_grad_() if tensor.requires_grad else copy


def moved(data: object, device: torch.device) -> object:
    """Return `data` with its CPU tensors on `device`; the containers on the way to them are new."""
    return replaced(data, lambda tensor: tensor.device.type == "cpu", lambda tensors: _to(tensors, device))


def _to(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    with torch.no_grad():
        copies = [tensor.to(device) for tensor in tensors]
    return [_like(tensor, copy) for tensor, copy in zip(tensors, copies, strict=True)]


def address(tensor: torch.Tensor) -> int:
    """Return the address on the device of the tensor's first element, if its value has the storage's own order."""
    value = value_of(tensor)
    if value.device.spread is not None:
        raise RuntimeError(
            f"the tensor is on {len(value.device.spread.devices)} devices, so its memory has several addresses"
        )
    start: int = materialise(value).unsafe_buffer_pointer()
    return start + int(tensor.storage_offset()) * tensor.element_size()
