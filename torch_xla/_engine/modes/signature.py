"""The arguments of a call, taken apart: what identifies them, the tensors among them, and the objects."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, np.generic)


@dataclass
class Call:
    """Equal keys mean: the same nesting, the same Python values, tensors of one geometry, the same other objects."""

    key: tuple[Any, ...]
    tensors: list[torch.Tensor]
    objects: list[Any] = field(default_factory=list)
    hindrance: str = ""  # why such a call can never be replayed


def taken_apart(args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    """The call with these arguments."""
    key: list[Any] = []
    call = Call((), [])
    for argument in args:
        _take(argument, key, call)
    for name, argument in kwargs.items():
        key.append(name)
        _take(argument, key, call)
    if len(call.tensors) > 1:
        # Two tensors on one storage, or twice the same, must come so again.
        storages = [id(tensor.untyped_storage()) for tensor in call.tensors]
        if len(set(storages)) < len(storages):
            key.append(tuple(storages.index(each) for each in storages))
    call.key = tuple(key)
    return call


def _take(argument: Any, key: list[Any], call: Call) -> None:
    kind = argument.__class__
    if isinstance(argument, torch.Tensor):
        geometry = (argument.shape, argument.stride(), argument.storage_offset(), argument.dtype)
        key.append((kind, geometry, argument.device, argument.requires_grad))
        call.tensors.append(argument)
        if argument.device.type != "xla":
            call.hindrance = "an argument is a tensor on the CPU: move it to the device before the call"
        elif argument.requires_grad:
            call.hindrance = "an argument requires a gradient"
        elif argument.dtype.is_complex and (argument.is_conj() or argument.is_neg()):
            call.hindrance = "an argument is a conjugate or negative view"
    elif kind is tuple or kind is list:
        key.append((kind, len(argument)))
        for element in argument:
            _take(element, key, call)
    elif kind is dict:
        key.append((kind, tuple(argument)))
        for element in argument.values():
            _take(element, key, call)
    elif isinstance(argument, _SCALARS):
        key.append((kind, repr(argument) if kind is float else argument))
    else:
        key.append((kind, id(argument)))
        call.objects.append(argument)
