"""Gradients before and after a replay: backward makes new tensors, or adds to those that exist."""

from itertools import repeat
from operator import attrgetter, is_
from sys import getrefcount
from typing import Any

import torch

from ...compat.names import torch as private
from ...compat.names.torch import address_of
from ...ir.tape import Value
from ...ir.value_spec import Spec
from ...tensor.device import Device
from ...tensor.storage import META_KEYS, as_strided, wrap
from .call_record import GRADIENT, Facts, OuterMemory

_gradient = attrgetter("grad")
_attributes = attrgetter("__dict__")
_storage = torch.Tensor.untyped_storage
_offset = torch.Tensor.storage_offset
_uses = private.tensor_use_count

# In the place of a tensor that is not to be held.
NOTHING = torch.empty(0)


def _counts(gradients: list[Any]) -> list[int]:
    return [getrefcount(gradient) for gradient in gradients]


def _of_one(as_gradient: bool) -> tuple[int, int, int]:
    """Return the reference counts of a gradient in one list, and of its parameter if it is set: see `_are_ours`."""
    parameter, gradients = torch.ones(1, requires_grad=True), [torch.ones(1)]
    gradients[0].untyped_storage()  # is an object of its own from now on
    if as_gradient:
        parameter.grad = gradients[0]
    address = address_of(gradients[0].untyped_storage())
    return _counts(gradients)[0], _uses(gradients[0]), private.storage_use_count(address)


_ALONE = _of_one(as_gradient=False)
_AS_GRADIENT = _of_one(as_gradient=True)


def _geometry(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


class Gradients:
    """The changes of a replay to the gradients of leaves. It does not hold the gradients of the recorded calls."""

    def __init__(self, facts: Facts, used: set[int], specs: dict[int, Spec], device: Device) -> None:
        """Take the places that are read or written as `used`, and the specs of the written ones as `specs`."""
        self._device = device
        # A tensor that requires none may be given one, too: an optimizer uses it, and a replay knows of none.
        leaves, seen = set(map(id, facts.leaves)), facts.reached.tensors if facts.reached is not None else []
        others = [tensor for tensor in seen if id(tensor) not in leaves]
        self._looked_at = [*facts.leaves, *others]
        self._absent = [*(not had for had in facts.had_gradient), *(True for _ in others)]
        places: dict[int, list[int]] = {}
        for index, place in enumerate(facts.places):
            if place.leaf >= 0:
                places.setdefault(place.leaf, []).append(index)
        self.found: list[tuple[torch.Tensor, int]] = []  # leaves whose gradient is read or added to, and its place
        self.dropped: set[int] = set()  # the places of gradients that another one replaces
        self._cleared: list[torch.Tensor] = []
        self._made: list[tuple[torch.Tensor, int, Spec, Any]] = []
        found: list[torch.Tensor] = []
        for number, (leaf, had, became) in enumerate(
            zip(facts.leaves, facts.had_gradient, facts.gradients, strict=True)
        ):
            own = places.get(number, [])
            if had and own[0] in used:
                self.found.append((leaf, own[0]))
                found.append(facts.places[own[0]].tensor)
                if became != "the same":
                    self.dropped.add(own[0])
            if had and became == "none":
                self._cleared.append(leaf)
            elif became == "new":
                self._made.append((leaf, own[-1], specs[own[-1]], _geometry(facts.places[own[-1]].tensor)))
        self._finders = [leaf for leaf, _ in self.found]
        self._geometry = [(*_geometry(each), each.dtype) for each in found]
        self._guards = private.TensorGuards(*found, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self._offsets = list(map(_offset, found))
        self._makers = [leaf for leaf, *_ in self._made]
        # Gradients made for the last call. Their memory is used again if only the leaves hold them.
        self._ours: list[Any] = [None] * len(self._made)
        self._addresses = [0] * len(self._made)
        count = len(self._made)
        self._if_ours = {True: [[each] * count for each in _AS_GRADIENT], False: [[each] * count for each in _ALONE]}
        for index, place in enumerate(facts.places):
            if place.leaf >= 0:
                facts.places[index] = OuterMemory(NOTHING, GRADIENT, leaf=place.leaf)

    def are_there(self) -> bool:
        """Return whether there are gradients where there were some, and none where there were none."""
        return list(map(is_, map(_gradient, self._looked_at), repeat(None))) == self._absent

    def fit(self) -> bool:
        """Return whether those it reads or adds to have the forms that they had."""
        if not self._finders:
            return True
        now = list(map(_gradient, self._finders))
        if self._guards.check(*now) and list(map(_offset, now)) == self._offsets:
            return True
        return self._geometry == [(*_geometry(each), each.dtype) for each in now] and not any(
            each.requires_grad or type(each) is not torch.Tensor for each in now
        )

    def enter(self, storages: list[Any], arguments: int) -> bool:
        """Store the memory of all gradients in `storages`, and return whether it is other memory than before."""
        changed = False
        for (_, place), storage in zip(self.found, map(_storage, map(_gradient, self._finders)), strict=True):
            if storages[place - arguments] is not storage:
                storages[place - arguments] = storage
                changed = True
        if self._made and not self._are_ours():
            changed = True
            self._renew(storages, arguments)
        return changed

    def _are_ours(self) -> bool:
        """Return whether only their leaves, if anything, hold the gradients that were made for the last call."""
        ours = self._ours
        mine = list(map(is_, map(_gradient, self._makers), ours))
        counts, uses, shares = self._if_ours[mine[0]]
        return (
            mine.count(mine[0]) == len(mine)
            and _counts(ours) == counts
            and list(map(_uses, ours)) == uses
            and list(map(private.storage_use_count, self._addresses)) == shares
            and not any(map(_attributes, ours))
        )

    def _is_ours(self, number: int) -> bool:
        one = [self._ours[number]]
        if one[0] is None:
            return False
        expected = _AS_GRADIENT if self._makers[number].grad is one[0] else _ALONE
        self._ours[number] = None
        now = _counts(one)[0], _uses(one[0]), private.storage_use_count(self._addresses[number])
        self._ours[number] = one[0]
        return now == expected and not one[0].__dict__

    def _renew(self, storages: list[Any], arguments: int) -> None:
        for number, (_, place, spec, geometry) in enumerate(self._made):
            if not self._is_ours(number):
                gradient = wrap(Value(spec, self._device, None, -1))
                if _geometry(gradient) != geometry:
                    gradient = as_strided(META_KEYS, gradient, *geometry)
                storage = gradient.untyped_storage()
                self._ours[number] = gradient
                self._addresses[number] = address_of(storage)
                storages[place - arguments] = storage

    def left(self) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """Return the leaves whose gradient changes, and the new gradients: None where the gradient is removed."""
        new = [
            (leaf, gradient)
            for leaf, gradient in zip(self._makers, self._ours, strict=True)
            if leaf.grad is not gradient
        ]
        cleared: list[torch.Tensor | None] = [None] * len(self._cleared)
        return [*(leaf for leaf, _ in new), *self._cleared], [*(gradient for _, gradient in new), *cleared]
