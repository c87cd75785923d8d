"""Describe a function's return value, so that it can be rebuilt from new values."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Container
from typing import Any

import torch

from ...compat.names.torch import is_view, spent
from ...tensor.storage import value_of

# Gives the tensor or value behind one source of a result; filled in at every replay.
Sources = dict[Any, Any]
Recipe = Callable[[Sources], Any]

_CONSTANT = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device, range)
_TENSORS = (torch.Tensor, torch.nn.Parameter)


class Unreturnable(Exception):
    """A result that cannot be made again."""


def again(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached result whose graph is used up, as its function returns it: it requires a gradient, and has
    none.
    """
    return spent(tensor.requires_grad_())


class Returned:
    """The results of one call: where their memory comes from, and how to make them again."""

    def __init__(
        self,
        result: object,
        owner_of: Callable[[torch.Tensor], Any],
        known: dict[int, Any],
        given: Container[int],
        spent: Container[int] = (),
    ) -> None:
        """Take as `known` the objects, by address, that the function has seen; those `given` differ at each call.

        The tensors that are `spent` come detached, and had a graph that is used up.
        """
        self.storages: dict[int, torch.Tensor] = {}  # storages that only the result holds
        self.owners: set[int] = set()  # places that are returned, or a view of them is
        self.structure: list[Any] = []
        self._owner_of = owner_of
        self._known = known
        self._given = given
        self._spent = spent
        self._made: dict[int, int] = {}  # the tensors of the result, each with its number
        self._containers: set[int] = set()
        self.make = self._recipe(result)
        del self._owner_of, self._known, self._given, self._spent  # what they hold is not to stay because of the result

    def _recipe(self, result: Any) -> Recipe:
        kind = result.__class__
        if isinstance(result, torch.Tensor):
            return self._tensor(result)
        if kind in _CONSTANT:
            self.structure.append((kind, repr(result)))
            return lambda _: result
        if id(result) in self._given:
            raise Unreturnable("it returns a list, tuple or dictionary that it was given: return a new one")
        if id(result) in self._known:
            self.structure.append(("known", id(result)))
            return lambda _: result
        if id(result) in self._containers:
            raise Unreturnable("it returns one list or dictionary in two places")
        self._containers.add(id(result))
        if kind is list or kind is tuple or (isinstance(result, tuple) and _is_named(kind)):
            self.structure.append((kind, len(result)))
            parts = [self._recipe(part) for part in result]
            build: Any = getattr(kind, "_make", kind)
            return lambda sources: build([part(sources) for part in parts])
        if kind in (dict, OrderedDict, defaultdict):
            return self._mapping(result, kind)
        if isinstance(result, dict) and kind.__module__.partition(".")[0] == "transformers":
            return self._output(result, kind)
        raise Unreturnable(f"it returns an object of class {kind.__name__}; return tensors, numbers, lists or dicts")

    def _mapping(self, result: Any, kind: Any) -> Recipe:
        if any(type(key) not in _CONSTANT for key in result):
            raise Unreturnable("it returns a dictionary with objects for keys")
        self.structure.append((kind, tuple(result)))
        named = {key: self._recipe(part) for key, part in result.items()}
        if kind is defaultdict:
            default = result.default_factory
            self.structure.append(default)
            return lambda sources: defaultdict(default, {key: part(sources) for key, part in named.items()})
        return lambda sources: kind((key, part(sources)) for key, part in named.items())

    def _output(self, result: Any, kind: Any) -> Recipe:
        if set(vars(result)) - {*vars(kind).get("__dataclass_fields__", ())}:
            raise Unreturnable(f"it returns a {kind.__name__} with other attributes than its fields")
        self.structure.append((kind, tuple(result)))
        named = {key: self._recipe(part) for key, part in result.items()}
        return lambda sources: kind(**{key: part(sources) for key, part in named.items()})

    def _tensor(self, tensor: torch.Tensor) -> Recipe:
        if tensor.device.type != "xla":
            raise Unreturnable("it returns a tensor on the CPU: return it as it is on the device")
        owner = self._owner_of(tensor)
        size, stride, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
        if owner is not None and owner[1] is tensor:
            place = owner[0]
            self.owners.add(place)
            self.structure.append(("same", place))
            return lambda sources: sources[place]
        if id(tensor) in self._known:
            self.structure.append(("known", id(tensor)))
            return lambda _: tensor
        if type(tensor) not in _TENSORS or tensor.__dict__:
            raise Unreturnable("it returns a tensor of a class of its own, or with attributes")
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
            self.owners.add(key)
        number = self._made.setdefault(id(tensor), len(self._made))
        is_spent = id(tensor) in self._spent
        self.structure.append((key, number, size, stride, offset, tensor.dtype, is_view(tensor), is_spent))
        return _view_of(key, ("made", number), size, stride, offset, again if is_spent else _as_it_is)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _view_of(
    key: object, made: object, size: object, stride: object, offset: int, finish: Callable[[torch.Tensor], torch.Tensor]
) -> Recipe:
    """Return a tensor for each of the result; twice the same where it was twice the same."""

    def make(sources: Sources) -> torch.Tensor:
        tensor: torch.Tensor | None = sources.get(made)
        if tensor is None:
            tensor = sources[made] = finish(_view(sources, key, size, stride, offset))
        return tensor

    return make


def _view(sources: Sources, key: Any, size: Any, stride: Any, offset: int) -> torch.Tensor:
    source: torch.Tensor = sources[key]
    is_new = isinstance(key, tuple)
    if is_new and offset == 0 and source.shape == size and source.stride() == stride and (key, "gone") not in sources:
        sources[key, "gone"] = source  # it is the tensor itself, for the first that shows all of it
        return source
    source = source.detach() if source.requires_grad or not is_new else source
    return source.as_strided(size, stride, offset)


def _is_named(kind: type) -> bool:
    """Return whether a class of tuples is made of its elements alone."""
    return (hasattr(kind, "_make") and kind.__dictoffset__ == 0) or kind.__module__ == "torch.return_types"
