"""What a function returned, as a recipe that makes it again from other values."""

from collections.abc import Callable
from typing import Any

import torch

from ..tensor.storage import META_KEYS, as_strided, value_of

# Gives the tensor or value behind one source of a result; filled in at every replay.
Sources = dict[Any, Any]
Recipe = Callable[[Sources], Any]


class Unreturnable(Exception):
    """A result that cannot be made again."""


class Returned:
    """The results of one call: where their memory comes from, and how to make them again."""

    def __init__(self, result: Any, owner_of: Callable[[torch.Tensor], Any]) -> None:
        self.storages: dict[int, torch.Tensor] = {}  # those that belong to nothing but the result
        self.owners: set[int] = set()  # the places that are returned, or of which a view is
        self.structure: list[Any] = []
        self._owner_of = owner_of
        self.make = self._recipe(result)
        del self._owner_of  # it knows all the memory of the call, which is not to stay because of the result

    def _recipe(self, result: Any) -> Recipe:
        kind = result.__class__
        if isinstance(result, torch.Tensor):
            return self._tensor(result)
        if result is None or isinstance(result, (bool, int, float, complex, str, bytes, torch.Size, torch.dtype)):
            self.structure.append((kind, repr(result)))
            return lambda _: result
        if isinstance(result, (list, tuple)):
            self.structure.append((kind, len(result)))
            parts = [self._recipe(part) for part in result]
            build: Any = getattr(kind, "_make", kind)
            return lambda sources: build([part(sources) for part in parts])
        if isinstance(result, dict):
            self.structure.append((kind, tuple(result)))
            named = {key: self._recipe(part) for key, part in result.items()}
            if kind is dict:
                return lambda sources: {key: part(sources) for key, part in named.items()}
            return lambda sources: kind(**{key: part(sources) for key, part in named.items()})
        raise Unreturnable(f"it returns an object of class {kind.__name__}; return tensors, numbers, lists or dicts")

    def _tensor(self, tensor: torch.Tensor) -> Recipe:
        if tensor.device.type != "xla":
            raise Unreturnable("it returns a tensor on the CPU: return it as it is on the device")
        owner = self._owner_of(tensor)
        size, stride, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
        if owner is not None:
            self.owners.add(owner[0])
        if owner is not None and owner[1] is tensor:
            place = owner[0]
            self.structure.append(("same", place))
            return lambda sources: sources[place]
        if tensor.requires_grad:
            raise Unreturnable(
                "it returns a tensor that could still be differentiated: return `x.detach()`, or call backward inside"
            )
        if tensor.dtype is not value_of(tensor).spec.dtype:
            raise Unreturnable("it returns memory as another dtype: return `x.clone()`")
        if tensor.dtype.is_complex and (tensor.is_conj() or tensor.is_neg()):
            raise Unreturnable("it returns a conjugate or negative view: return `x.resolve_conj()`")
        if owner is None:
            key: Any = id(tensor.untyped_storage())
            self.storages.setdefault(key, tensor)
            key = list(self.storages).index(key), "new"
        else:
            key = owner[0]
        self.structure.append((key, size, stride, offset, tensor.dtype))
        return lambda sources: _view(sources[key], size, stride, offset)


def _view(source: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
    if offset == 0 and source.shape == size and source.stride() == stride:
        return source if not source.requires_grad else source.detach()
    result: torch.Tensor = as_strided(META_KEYS, source.detach(), size, stride, offset)
    return result
