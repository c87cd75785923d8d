"""What a function can see, as it was when it was recorded: containers, numbers, tensors.

A replayed function does not run, so whatever it would have looked at must be what it was. Contents are compared by
identity, at the speed of C: about 50 ns an entry. `walk` finds them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch

from ..private import torch as private

_cell_contents = attrgetter("cell_contents")
_version = attrgetter("_version")


@dataclass
class Difference:
    """Something that is not what it was."""

    path: str
    text: str
    read: Callable[[], Any]  # looks again

    def __str__(self) -> str:
        return f"{self.path}{self.text}"


class Kind(Enum):
    """How the contents of a container are looked at."""

    MAP = auto()  # the values of a mapping, and its keys
    ATTRIBUTES = auto()  # the values of an object's attributes
    SEQUENCE = auto()  # the elements of a list
    CELL = auto()  # a variable of an enclosing function
    NAME = auto()  # a global, a slot or a class attribute, by a function that reads it
    WRITES = auto()  # how often a tensor on the CPU was written
    ARRAY = auto()  # the bytes of a NumPy array


_CHANGED = {Kind.WRITES: ", a tensor on the CPU", Kind.ARRAY: ", an array"}


@dataclass(slots=True)
class Container:
    """One thing whose contents can change, and what it held when it was settled."""

    path: str
    held: Any
    kind: Kind
    expected: list[Any] = field(default_factory=list)

    def contents(self) -> list[Any]:
        """What it holds now."""
        match self.kind:
            case Kind.MAP | Kind.ATTRIBUTES:
                return list(self.held.values())
            case Kind.SEQUENCE:
                return list(self.held)
            case Kind.CELL:
                return [self.held.cell_contents]
            case Kind.WRITES:
                return [self.held._version]
            case Kind.ARRAY:
                return [self.held.tobytes()]
            case Kind.NAME:
                return [self.held()]

    def place(self, index: int) -> str:
        """The name of one element, for messages."""
        if self.kind is Kind.SEQUENCE:
            return f"{self.path}[{index}]"
        if self.kind not in (Kind.MAP, Kind.ATTRIBUTES):
            return self.path
        key = list(self.held)[index]
        return f"{self.path}.{key}" if self.kind is Kind.ATTRIBUTES else f"{self.path}[{key_text(key)}]"

    def element(self, index: int) -> Any:
        """One element now; `None` if it is gone."""
        contents = self.contents()
        return contents[index] if index < len(contents) else None

    def differences(self) -> list[Difference]:
        """What is not as expected. An equal number in the place of another is taken for it from now on."""
        now = self.contents()
        if len(now) != len(self.expected):
            text = f": {len(self.expected)} entries before, {len(now)} now"
            return [Difference(self.path, text, lambda: len(self.contents()))]
        found = []
        for index, (old, new) in enumerate(zip(self.expected, now, strict=True)):
            if old is not new:
                if _equal(old, new):
                    self.expected[index] = new
                else:
                    text = _CHANGED.get(self.kind) or f": {_short(old)} before, {_short(new)} now"
                    found.append(Difference(self.place(index), text, functools.partial(self.element, index)))
        return found


@dataclass
class Reached:
    """What was found: containers with their contents at that time, and the tensors in them."""

    tensors: list[torch.Tensor] = field(default_factory=list)  # on xla
    tensor_paths: list[str] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)

    def settle(self) -> None:
        """Takes what everything holds now for what it must hold."""
        for each in self.containers:
            each.expected = each.contents()
        self._flatten()

    def _flatten(self) -> None:
        # The same again, in lists that are compared without a line of Python for each.
        by_kind: dict[Kind, list[Container]] = {kind: [] for kind in Kind}
        for each in self.containers:
            if each.expected:
                by_kind[each.kind].append(each)
        self._empty = [each.held for each in self.containers if not each.expected]
        maps = by_kind[Kind.MAP] + by_kind[Kind.ATTRIBUTES]
        # A dictionary of the same version was not written to. An ordered one may have another order then.
        self._dictionaries = [each for each in maps if type(each.held) is dict]
        self._plain = [each.held for each in self._dictionaries]
        self._versions = list(map(private.dict_version, self._plain))
        self._orders = [tuple(held) for held in self._plain]
        maps = [each for each in maps if type(each.held) is not dict]
        sized = maps + by_kind[Kind.SEQUENCE]
        rest = by_kind[Kind.CELL] + by_kind[Kind.NAME]
        self._maps = [each.held for each in maps]
        self._keyed = [each.held for each in maps if each.kind is Kind.MAP]
        self._keys = [tuple(held) for held in self._keyed]
        self._sequences = [each.held for each in by_kind[Kind.SEQUENCE]]
        self._lengths = [len(each.expected) for each in sized]
        self._cells = [each.held for each in by_kind[Kind.CELL]]
        self._names = [each.held for each in by_kind[Kind.NAME]]
        self._host = [each.held for each in by_kind[Kind.WRITES]]
        self._writes = [each.expected[0] for each in by_kind[Kind.WRITES]]
        self._arrays = [(each.held, each.expected[0]) for each in by_kind[Kind.ARRAY]]
        self._expected = [value for each in (*sized, *rest) for value in each.expected]

    def unchanged(self) -> bool:
        """Whether everything holds what it held."""
        if list(map(private.dict_version, self._plain)) != self._versions and not self._still_hold():
            return False
        if (
            any(self._empty)
            or [*map(len, self._maps), *map(len, self._sequences)] != self._lengths
            or list(map(_version, self._host)) != self._writes
        ):
            return False
        contents = chain(
            chain.from_iterable([each.values() for each in self._maps]),
            chain.from_iterable(self._sequences),
            map(_cell_contents, self._cells),
            [read() for read in self._names],
        )
        if not all(map(is_, contents, self._expected)):
            if self.differences():
                return False
            self._flatten()
        if list(map(tuple, self._keyed)) != self._keys:
            return False
        return all(array.tobytes() == before for array, before in self._arrays)

    def _still_hold(self) -> bool:
        """Whether the dictionaries that were written to hold what they held; if so, that is settled."""
        for index, each in enumerate(self._dictionaries):
            version = private.dict_version(each.held)
            if version != self._versions[index]:
                if each.differences() or (each.kind is Kind.MAP and tuple(each.held) != self._orders[index]):
                    return False
                self._versions[index] = version
        return True

    def differences(self) -> list[Difference]:
        """What has changed since the contents were settled."""
        return [difference for each in self.containers for difference in each.differences()]


def key_text(key: Any) -> str:
    """A key of a mapping, for messages."""
    return f"a parameter of shape {list(key.shape)}" if isinstance(key, torch.Tensor) else repr(key)


def _equal(old: Any, new: Any) -> bool:
    return type(old) is type(new) and isinstance(old, (int, float, complex, str, bytes, tuple)) and _same(old, new)


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, tuple):
        return len(old) == len(new) and all(a is b or _equal(a, b) for a, b in zip(old, new, strict=True))
    return bool(old == new)


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
