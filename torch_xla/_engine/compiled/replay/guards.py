"""Guards: compare containers, numbers and tensors that a function can see with what they were in the watched call.

A replayed function does not run, so whatever it would have looked at must be what it was. Contents are compared by
identity, at the speed of C: about 50 ns an entry. `guard_builder` finds them.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch

from ...compat.names import torch as private

_cell_contents = attrgetter("cell_contents")
_code = attrgetter("__code__")
_defaults = attrgetter("__defaults__")
_kwdefaults = attrgetter("__kwdefaults__")
_dict_of = attrgetter("__dict__")


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


@dataclass
class Change:
    """Something that is not what it was."""

    path: str
    text: str
    read: Callable[[], object]  # looks again

    def __str__(self) -> str:
        return f"{self.path}{self.text}"


class Look(Enum):
    """How the contents of a container are looked at."""

    MAP = auto()  # the values of a mapping, and its keys
    ATTRIBUTES = auto()  # the values of an object's attributes
    NAMED = auto()  # of the attributes of an object, a class or a module, or of globals, those with certain names
    SEQUENCE = auto()  # the elements of a list
    CELL = auto()  # a variable of an enclosing function
    NAME = auto()  # a slot, by a function that reads it
    FUNCTION = auto()  # the code and the defaults of a function
    OBJECT = auto()  # the class of an object, and where its attributes are
    HOOKS = auto()  # those of a tensor
    GEOMETRY = auto()  # which memory a tensor shows, and how
    HOST = auto()  # the bytes of a tensor on the CPU
    HOST_FORM = auto()  # how a tensor on the CPU shows its memory, whatever that holds
    ARRAY = auto()  # the bytes of a NumPy array


_CHANGED = {
    Look.HOST: ", a tensor on the CPU",
    Look.ARRAY: ", an array",
    Look.GEOMETRY: ", the memory of a tensor or how it shows it",
}


@dataclass(slots=True)
class Container:
    """One thing whose contents can change, and what it held when it was settled."""

    path: str
    held: Any
    kind: Look
    names: tuple[str, ...] = ()
    expected: list[Any] = field(default_factory=list)
    open: frozenset[str] = frozenset()  # the keys of a dictionary whose values may be others of their type

    def let_change(self, keys: Iterable[str]) -> None:
        """Look from now on at no more than the types of a dictionary's values at these keys."""
        self.open |= set(keys)
        self.expected = self.contents()

    def let_change_all(self) -> None:
        """Look from now on at no more than the form of a tensor on the CPU."""
        self.kind = Look.HOST_FORM
        self.expected = self.contents()

    def contents(self) -> list[object]:
        """Return the present contents."""
        held = self.held
        if self.open:
            held = {key: type(value) if key in self.open else value for key, value in held.items()}
        match self.kind:
            case Look.MAP | Look.ATTRIBUTES:
                return [*_plain_dict(held).values(), *_plain_dict(held)]
            case Look.NAMED:
                get = held.get
                return [get(name, MISSING) for name in self.names]
            case Look.SEQUENCE:
                return list(elements_of(held))
            case Look.CELL:
                return [cell_contents(held)]
            case Look.HOST | Look.ARRAY:
                return [bytes_of(held)]
            case Look.HOST_FORM:
                return [(held.dtype, held.shape, held.stride(), held.storage_offset(), held.requires_grad)]
            case Look.NAME:
                return [held()]
            case Look.FUNCTION:
                return [_code(held), _defaults(held), _kwdefaults(held)]
            case Look.OBJECT:
                return [type(held), getattr(held, "__dict__", None)]
            case Look.HOOKS:
                return [private.hooks_of(held), private.hooks_after_accumulation_of(held)]
            case Look.GEOMETRY:
                return [held.untyped_storage(), (held.shape, held.stride(), held.storage_offset(), held.requires_grad)]

    def place(self, index: int) -> str:
        """Return the name of one element, for messages."""
        if self.kind is Look.SEQUENCE:
            return f"{self.path}[{index}]"
        if self.kind is Look.NAMED:
            return f"{self.path}.{self.names[index]}" if self.path else self.names[index]
        if self.kind not in (Look.MAP, Look.ATTRIBUTES):
            return self.path
        key = list(self.held)[index % len(self.held)]
        return f"{self.path}.{key}" if self.kind is Look.ATTRIBUTES else f"{self.path}[{key_text(key)}]"

    def element(self, index: int) -> object:
        """Return one element now; `None` if it is gone."""
        contents = self.contents()
        return contents[index] if index < len(contents) else None

    def differences(self) -> list[Change]:
        """Return the entries that differ from the expected ones. An equal number becomes the expected one."""
        now = self.contents()
        if len(now) != len(self.expected):
            share = 2 if self.kind in (Look.MAP, Look.ATTRIBUTES) else 1
            text = f": {len(self.expected) // share} entries before, {len(now) // share} now"
            return [Change(self.path, text, lambda: len(self.contents()))]
        found = []
        for index, (old, new) in enumerate(zip(self.expected, now, strict=True)):
            if old is not new:
                if _equal(old, new):
                    self.expected[index] = new
                else:
                    text = _CHANGED.get(self.kind) or f": {_short(old)} before, {_short(new)} now"
                    found.append(Change(self.place(index), text, functools.partial(self.element, index)))
        return found


@dataclass
class Reached:
    """The objects that a function can reach: containers with their contents at that time, and the tensors in them."""

    tensors: list[torch.Tensor] = field(default_factory=list)  # on xla
    tensor_paths: list[str] = field(default_factory=list)
    tensor_ids: set[int] = field(default_factory=set)
    containers: list[Container] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # what is not understood
    codes: set[object] = field(default_factory=set)  # of the functions of the program that were found
    seen: dict[int, Any] = field(default_factory=dict)  # every object

    def accept_all(self) -> None:
        """Take what everything holds now for what it must hold."""
        for each in self.containers:
            each.expected = each.contents()
        self._flatten()

    def _flatten(self) -> None:
        # The same again, in lists that are compared without a line of Python for each.
        by_kind: dict[Look, list[Container]] = {kind: [] for kind in Look}
        for each in self.containers:
            if each.expected or each.kind is Look.NAMED:
                by_kind[each.kind].append(each)
        self._empty = [each.held for each in self.containers if not each.expected and each.kind is not Look.NAMED]
        self._open = [each for each in self.containers if each.open]
        self._on_the_cpu = by_kind[Look.HOST_FORM]
        self._forms = private.TensorGuards(
            *[each.held for each in self._on_the_cpu], dynamic_dims_sizes=None, dynamic_dims_strides=None
        )
        maps = [each for kind in (Look.MAP, Look.ATTRIBUTES, Look.NAMED) for each in by_kind[kind] if not each.open]
        # A dictionary of the same version was not written to. An ordered one may have another order then.
        dictionaries = [each for each in maps if type(each.held) is dict]
        self._dictionaries = dictionaries if private.DICT_VERSIONS_TELL else []
        self._plain = [each.held for each in self._dictionaries]
        self._versions = list(map(private.dict_version, self._plain))
        # Without versions of dictionaries, look names up, and compare the other dictionaries entry by entry.
        named = [] if private.DICT_VERSIONS_TELL else [each for each in dictionaries if each.kind is Look.NAMED]
        self._named = [(each.held.get, each.names) for each in named]
        self._maps = [each for each in maps if type(each.held) is not dict]
        if not private.DICT_VERSIONS_TELL:
            self._maps += [each for each in dictionaries if each.kind is not Look.NAMED]
        # A changed class matters only in the names that were read; of other mappings every entry matters.
        self._values = [each.held.values() for each in self._maps]
        self._keys = [tuple(each.held) for each in self._maps]
        self._expected = [value for each in self._values for value in each]
        self._sequences = [each.held for each in by_kind[Look.SEQUENCE]]
        self._lengths = list(map(len, self._sequences))
        self._cells = [each.held for each in by_kind[Look.CELL]]
        self._names = [each.held for each in by_kind[Look.NAME]]
        functions = [each.held for each in by_kind[Look.FUNCTION]]
        objects = [each.held for each in by_kind[Look.OBJECT]]
        hooked = [each.held for each in by_kind[Look.HOOKS]]
        self._objects = objects
        self._with_dict = [each for each in objects if hasattr(each, "__dict__")]
        # Functions in C that read these objects, and the results at that time.
        self._read: list[tuple[Callable[[Any], Any], list[Any]]] = [
            (_code, functions),
            (_defaults, functions),
            (_kwdefaults, functions),
            (type, objects),
            (_dict_of, self._with_dict),
            (private.hooks_of, hooked),
            (private.hooks_after_accumulation_of, hooked),
            (
                cell_contents if any(each.expected[0] is MISSING for each in by_kind[Look.CELL]) else _cell_contents,
                self._cells,
            ),
        ]
        self._given = self._give()
        self._bytes = [(each.held, each.expected[0]) for each in by_kind[Look.HOST] + by_kind[Look.ARRAY]]

    def _give(self) -> list[object]:
        return [
            *chain.from_iterable([map(read, of) for read, of in self._read]),
            *chain.from_iterable(self._sequences),
            *chain.from_iterable([map(get, names, repeat(MISSING)) for get, names in self._named]),
            *[read() for read in self._names],
        ]

    def unchanged(self) -> bool:
        """Return whether everything holds what it held."""
        if list(map(private.dict_version, self._plain)) != self._versions and not self._still_hold():
            return False
        if any(self._empty) or list(map(len, self._sequences)) != self._lengths:
            return False
        try:
            given = self._give()
        except ValueError:  # a variable without a value
            return False
        if len(given) != len(self._given) or not all(map(is_, given, self._given)):
            if self.differences():
                return False
            self._flatten()
        if not all(map(is_, chain.from_iterable(self._values), self._expected)) or (
            list(map(tuple, [each.held for each in self._maps])) != self._keys
        ):
            if any(each.differences() for each in self._maps):
                return False
            self._flatten()
        if not self._forms.check(*[each.held for each in self._on_the_cpu]) and any(
            each.differences() for each in self._on_the_cpu
        ):
            return False
        if any([each.differences() for each in self._open]):
            return False
        return all(bytes_of(held) == before for held, before in self._bytes)

    def _still_hold(self) -> bool:
        """Return whether the dictionaries that were written to hold what they held; if so, that is settled."""
        for index, each in enumerate(self._dictionaries):
            version = private.dict_version(each.held)
            if version != self._versions[index]:
                if each.differences():
                    return False
                self._versions[index] = version
        return True

    def differences(self) -> list[Change]:
        """Return the changes since the contents were recorded."""
        return [difference for each in self.containers for difference in each.differences()]


def elements_of(sequence: Any) -> Any:
    """Return the elements of a list, tuple or set, also where a class of the user's own gives others."""
    for kind in (list, tuple, set, frozenset):
        if isinstance(sequence, kind):
            return kind.__iter__(sequence)  # type: ignore[arg-type]
    return iter(sequence)


def cell_contents(cell: Any) -> object:
    """Return the value of a variable of an enclosing function."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def bytes_of(held: np.ndarray | torch.Tensor) -> Any:
    """Return the bytes of a tensor on the CPU or an array, with its geometry."""
    if isinstance(held, torch.Tensor):
        flat = held.detach().reshape(-1).resolve_conj().resolve_neg().view(torch.uint8)
        return flat.numpy().tobytes(), held.dtype, held.shape, held.stride(), held.requires_grad
    return held.tobytes(), held.dtype, held.shape, held.strides, held.flags.writeable


def is_of_the_host(value: object) -> bool:
    """Return whether this is what `bytes_of` gives."""
    return type(value) is tuple and bool(value) and type(value[0]) is bytes


def key_text(key: object) -> str:
    """Return a key of a mapping, for messages."""
    return f"a parameter of shape {list(key.shape)}" if isinstance(key, torch.Tensor) else repr(key)


_VALUES = frozenset(
    (bool, int, float, complex, str, bytes, tuple, torch.Size, type(np.dtype(float)), np.dtype, torch.device)
)


def _plain_dict(held: object) -> Any:
    """Return the contents of a mapping, also where a class of the user's own gives others."""
    return dict(dict.items(held)) if isinstance(held, dict) and type(held) not in (dict, OrderedDict) else held


def _equal(old: object, new: object) -> bool:
    return type(old) is type(new) and type(old) in _VALUES and _same(old, new)


def _same(old: Any, new: Any) -> bool:
    if type(old) is tuple:
        return len(old) == len(new) and all(a is b or _equal(a, b) for a, b in zip(old, new, strict=True))
    # Zeros have signs, and what is no number equals nothing.
    return repr(old) == repr(new) if isinstance(old, (float, complex)) else bool(old == new)


def _short(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
