"""What a function can see: the objects behind its closure, its globals, its arguments and their attributes.

A replayed function does not run, so whatever of this it would have looked at must be what it was. Contents are compared
by identity, at the speed of C: about 50 ns an entry.
"""

import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch

from ..metrics import lines

# Beyond so many containers, looking at them every step costs more than recording does.
MOST_CONTAINERS = 50_000

_OPAQUE = (
    str, bytes, bytearray, int, float, complex, type(None), torch.dtype, torch.device, torch.Size, torch.layout,
    torch.memory_format, torch.Generator, types.ModuleType, types.BuiltinFunctionType, np.generic,
)  # fmt: skip

_TORCH_STATE = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_LIBRARIES = frozenset(("torch", "jax", "jaxlib", "numpy", "torch_xla"))

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
        return f"{self.path}.{key}" if self.kind is Kind.ATTRIBUTES else f"{self.path}[{_key(key)}]"

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
        sized = maps + by_kind[Kind.SEQUENCE]
        rest = by_kind[Kind.CELL] + by_kind[Kind.NAME]
        self._maps = [each.held for each in maps]
        self._keyed = [each.held for each in by_kind[Kind.MAP]]
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

    def differences(self) -> list[Difference]:
        """What has changed since the contents were settled."""
        return [difference for each in self.containers for difference in each.differences()]


def _key(key: Any) -> str:
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


class TooMuch(Exception):
    """A function sees more than can be looked at every step."""


def reach(roots: Iterable[tuple[str, Any]]) -> Reached:
    """What can be seen from `roots`, each with the name it goes by in messages."""
    walk = _Walk()
    for path, root in roots:
        walk.add(path, root)
    walk.run()
    walk.found.settle()
    return walk.found


class _Walk:
    def __init__(self) -> None:
        self.found = Reached()
        self._seen: dict[int, Any] = {}
        self._queue: deque[tuple[str, Any]] = deque()

    def add(self, path: str, value: Any) -> None:
        if not isinstance(value, _OPAQUE) and id(value) not in self._seen:
            self._seen[id(value)] = value  # alive, so that its id stays its own
            self._queue.append((path, value))

    def run(self) -> None:
        while self._queue:
            if len(self._seen) > MOST_CONTAINERS:
                raise TooMuch(f"it sees more than {MOST_CONTAINERS} objects")
            self._visit(*self._queue.popleft())

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(path, value)
        elif isinstance(value, np.ndarray):
            self._hold(path, value, Kind.ARRAY)
        elif isinstance(value, Mapping):
            self._mapping(path, value, Kind.MAP)
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            self._sequence(path, value)
        elif isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, types.MethodType):
            self.add(path.rpartition(".")[0] or path, value.__self__)
            self.add(path, value.__func__)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self.add(path, part)
        elif isinstance(value, type):
            self._class(path, value)
        else:
            self._object(path, value)

    def _tensor(self, path: str, tensor: torch.Tensor) -> None:
        if tensor.device.type == "xla":
            self.found.tensors.append(tensor)
            self.found.tensor_paths.append(path)
        elif tensor.device.type == "cpu":
            self._hold(path, tensor, Kind.WRITES)

    def _hold(self, path: str, held: Any, kind: Kind) -> None:
        self.found.containers.append(Container(path, held, kind))

    def _mapping(self, path: str, mapping: Mapping[Any, Any], kind: Kind) -> None:
        self._hold(path, mapping, kind)
        for key, value in list(mapping.items()):
            if isinstance(key, torch.Tensor):
                self.add(f"a key of {path}", key)
            self.add(f"{path}.{key}" if kind is Kind.ATTRIBUTES else f"{path}[{_key(key)}]", value)

    def _sequence(self, path: str, sequence: Any) -> None:
        if not isinstance(sequence, (tuple, frozenset)):
            self._hold(path, sequence, Kind.SEQUENCE)
        for index, value in enumerate(sequence):
            self.add(f"{path}[{index}]", value)

    def _object(self, path: str, value: Any) -> None:
        package = type(value).__module__.partition(".")[0]
        if package in _LIBRARIES:
            if not isinstance(value, _TORCH_STATE):
                return
        elif package in sys.stdlib_module_names and not isinstance(value, types.SimpleNamespace):
            return
        else:
            self.add(type(value).__name__, type(value))
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._mapping(path, attributes, Kind.ATTRIBUTES)
        for name in _slots(type(value)):
            if hasattr(value, name):
                self._hold(f"{path}.{name}", functools.partial(getattr, value, name, None), Kind.NAME)
                self.add(f"{path}.{name}", getattr(value, name))

    def _class(self, path: str, cls: type) -> None:
        if cls.__module__.partition(".")[0] in _LIBRARIES or cls.__module__.partition(".")[0] in _standard_names():
            return
        for base in cls.__mro__:
            if base.__module__.partition(".")[0] in _LIBRARIES or base is object:
                continue
            for name, value in list(vars(base).items()):
                if isinstance(value, types.FunctionType):
                    self.add(f"{path}.{name}", value)
                elif not name.startswith("__") and not hasattr(type(value), "__get__"):
                    self._hold(f"{path}.{name}", functools.partial(vars(base).get, name), Kind.NAME)
                    self.add(f"{path}.{name}", value)

    def _function(self, path: str, function: types.FunctionType) -> None:
        code = function.__code__
        if not is_users(code.co_filename):
            self._wrapped(path, function)
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._cell(name, cell)
        self.add(f"the defaults of {path}", function.__defaults__)
        self.add(f"the defaults of {path}", function.__kwdefaults__)
        names = _names_in(code)
        for name in names & function.__globals__.keys():
            value = function.__globals__[name]
            self._hold(name, functools.partial(function.__globals__.get, name), Kind.NAME)
            if isinstance(value, types.ModuleType):
                self._module(name, value, names)
            else:
                self.add(name, value)

    def _wrapped(self, path: str, function: types.FunctionType) -> None:
        # A decorator of a library, such as `torch.no_grad()`, around a function of the user's.
        for cell in function.__closure__ or ():
            try:
                if callable(cell.cell_contents):
                    self.add(path, cell.cell_contents)
            except ValueError:
                continue

    def _cell(self, name: str, cell: Any) -> None:
        try:
            value = cell.cell_contents
        except ValueError:
            return  # a variable that has no value yet
        self._hold(name, cell, Kind.CELL)
        self.add(name, value)

    def _module(self, path: str, module: types.ModuleType, names: set[str]) -> None:
        if module.__name__.partition(".")[0] in _LIBRARIES | _standard_names():
            return
        for name in names & vars(module).keys():
            self._hold(f"{path}.{name}", functools.partial(vars(module).get, name), Kind.NAME)
            self.add(f"{path}.{name}", vars(module)[name])


@functools.cache
def _standard_names() -> frozenset[str]:
    return frozenset(sys.stdlib_module_names) - {"__main__"}


def is_users(filename: str) -> bool:
    """Whether a file belongs neither to PyTorch, JAX or us, nor to Python itself."""
    return lines.belongs_to_user(filename)


def _slots(cls: type) -> tuple[str, ...]:
    names: list[str] = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@functools.cache
def _names_in(code: types.CodeType) -> set[str]:
    """The global names and attributes in a function, the functions inside it included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names
