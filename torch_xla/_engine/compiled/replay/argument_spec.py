"""Flatten the arguments of a call: what identifies them, their tensors, and their other objects."""

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType

import numpy as np
import torch

_SCALARS = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, range))
# Types whose equal values can differ: zeros have signs, and empty ranges have ends. They are compared by their text.
_TOLD_BY_TEXT = (float, complex, range)
_TENSORS = (torch.Tensor, torch.nn.Parameter)


@dataclass
class Call:
    """Equal keys mean: the same nesting, the same Python values, tensors of one geometry, the same other objects."""

    key: tuple[Hashable, ...]
    tensors: list[torch.Tensor]
    objects: list[object] = field(default_factory=list)  # compared by identity: they must live as long as the key
    containers: list[object] = field(default_factory=list)  # lists, tuples and dictionaries, which were taken apart
    hindrance: str = ""  # why such a call can never be replayed


def taken_apart(args: Sequence[object], kwargs: Mapping[str, object]) -> Call:
    """Return the call with these arguments. Keep the objects as long as its key: the key contains their addresses."""
    key: list[Hashable] = []
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
            same = list(map(id, call.tensors))
            key.append(
                tuple((storages.index(one), same.index(other)) for one, other in zip(storages, same, strict=True))
            )
    if len(call.containers) > 1:
        same = list(map(id, call.containers))
        if len(set(same)) < len(same):
            key.append(("shared", tuple(map(same.index, same))))
    call.key = tuple(key)
    return call


def _take(argument: object, key: list[Hashable], call: Call) -> None:
    kind = argument.__class__
    if isinstance(argument, torch.Tensor):
        _take_tensor(argument, kind, key, call)
    elif kind in _SCALARS:
        key.append((kind, repr(argument) if kind in _TOLD_BY_TEXT else argument))
    elif isinstance(argument, (tuple, list)) and (kind is tuple or kind is list or hasattr(kind, "_fields")):
        key.append((kind, len(argument)))
        call.containers.append(argument)
        for element in argument:
            _take(element, key, call)
    elif isinstance(argument, dict) and kind is dict:
        key.append((kind, tuple(map(_with_type, argument))))
        call.containers.append(argument)
        for element in argument.values():
            _take(element, key, call)
    elif isinstance(argument, slice):
        key.append(slice)
        for part in (argument.start, argument.stop, argument.step):
            _take(part, key, call)
    elif isinstance(argument, MethodType):
        key.append((kind, id(argument.__self__), id(argument.__func__)))
        call.objects += (argument.__self__, argument.__func__)
    elif isinstance(argument, functools.partial) and kind is functools.partial:
        key.append(kind)
        for part in (argument.func, argument.args, argument.keywords):
            _take(part, key, call)
    elif isinstance(argument, np.generic):
        key.append((kind, argument.dtype, argument.tobytes()))
    else:
        key.append((kind, id(argument)))
        call.objects.append(argument)


def own_state(tensor: torch.Tensor) -> dict[str, Hashable]:
    """Return the state of an argument that a call could change, apart from the elements, by name.

    A call is not replayed if an argument already has a gradient or attributes: so it matters only that there are some.
    """
    return {
        "shape or strides": (tensor.shape, tensor.stride(), tensor.storage_offset()),
        "memory": id(tensor.untyped_storage()),
        "dtype": tensor.dtype,
        "class": type(tensor),
        "need of a gradient": tensor.requires_grad,
        "gradient": tensor.is_leaf and tensor.grad is not None,
        "attributes": tuple(tensor.__dict__),
    }


def _with_type(name: object) -> Hashable:
    """Return a key of a dictionary together with its type: keys of different types can be equal."""
    if type(name) is tuple:
        return tuple(map(_with_type, name))
    return type(name), repr(name) if type(name) in _TOLD_BY_TEXT else name


def _take_tensor(tensor: torch.Tensor, kind: type, key: list[Hashable], call: Call) -> None:
    if tensor.device.type != "xla":
        call.hindrance = "an argument is a tensor on the CPU: move it to the device before the call"
        key.append((kind, tensor.device, tensor.dtype))
        return
    geometry = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
    key.append((kind, geometry, tensor.device, tensor.requires_grad, tensor.is_inference()))
    call.tensors.append(tensor)
    if kind not in _TENSORS:
        call.hindrance = f"an argument is a tensor of class `{kind.__qualname__}`"
    elif tensor.requires_grad:
        call.hindrance = "an argument requires a gradient"
    elif tensor.__dict__ or tensor.grad is not None:
        key.append("has attributes")
        call.hindrance = "an argument is a tensor with attributes, or with a gradient"
    elif tensor.dtype.is_complex and (tensor.is_conj() or tensor.is_neg()):
        call.hindrance = "an argument is a conjugate or negative view"
