"""Finds what a function can see: from its closure, globals and arguments through modules, optimizers and other objects.

Of the code of the user's own it follows the names that are written there: an attribute nobody names is not seen. The
code of installed packages is taken for granted, the attributes of their objects are not.
"""

import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from ..metrics import lines
from .reach import Container, Kind, Reached, key_text

# Beyond so many objects or entries, looking at them every step costs more than recording does.
MOST_OBJECTS = 50_000
MOST_ENTRIES = 200_000

_OPAQUE = (
    str, bytes, bytearray, int, float, complex, type(None), torch.dtype, torch.device, torch.Size, torch.layout,
    torch.memory_format, torch.Generator, types.ModuleType, types.BuiltinFunctionType, np.generic,
)  # fmt: skip

_TORCH_STATE = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_LIBRARIES = frozenset(("torch", "jax", "jaxlib", "numpy", "torch_xla"))
_STANDARD = frozenset(sys.stdlib_module_names) - {"__main__"}


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
        self._entries = 0
        # Every name in the user's code found so far, and what they may be attributes of.
        self._names: set[str] = set()
        self._classes: set[type] = set()
        self._with_attributes: list[tuple[str, Mapping[str, Any], set[str]]] = []

    def add(self, path: str, value: Any) -> None:
        if not isinstance(value, _OPAQUE) and id(value) not in self._seen:
            self._seen[id(value)] = value  # alive, so that its id stays its own
            self._queue.append((path, value))

    def run(self) -> None:
        while self._queue:
            while self._queue:
                if len(self._seen) > MOST_OBJECTS or self._entries > MOST_ENTRIES:
                    raise TooMuch("it sees too many objects: pass it what it needs as arguments")
                self._visit(*self._queue.popleft())
            # A function found late may name an attribute of an object found early.
            for path, attributes, done in self._with_attributes:
                self._named_attributes(path, attributes, done)

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
        elif isinstance(value, (property, classmethod, staticmethod)):
            self.add(path, value.fget if isinstance(value, property) else value.__func__)
        elif isinstance(value, type):
            self._class(path, value, is_called=True)
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

    def _hold_name(self, path: str, mapping: Mapping[str, Any], name: str) -> None:
        self._hold(path, functools.partial(mapping.get, name), Kind.NAME)
        self.add(path, mapping.get(name))

    def _mapping(self, path: str, mapping: Mapping[Any, Any], kind: Kind) -> None:
        self._hold(path, mapping, kind)
        self._entries += len(mapping)
        for key, value in list(mapping.items()):
            if isinstance(key, torch.Tensor):
                self.add(f"a key of {path}", key)
            self.add(f"{path}.{key}" if kind is Kind.ATTRIBUTES else f"{path}[{key_text(key)}]", value)

    def _sequence(self, path: str, sequence: Any) -> None:
        self._entries += len(sequence)
        if not isinstance(sequence, (tuple, frozenset)):
            self._hold(path, sequence, Kind.SEQUENCE)
        for index, value in enumerate(sequence):
            self.add(f"{path}[{index}]", value)

    def _object(self, path: str, value: Any) -> None:
        kind = type(value)
        package = _package(kind)
        is_torchs = isinstance(value, _TORCH_STATE)
        if (package in _LIBRARIES and not is_torchs) or (package in _STANDARD and kind is not types.SimpleNamespace):
            return
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            if is_torchs or not _is_own(kind):
                self._mapping(path, attributes, Kind.ATTRIBUTES)
            else:
                self._hold(f"the attributes of {path}", functools.partial(len, attributes), Kind.NAME)
                self._attributes(path, attributes)
        for name in _slots(kind):
            if hasattr(value, name):
                self._hold(f"{path}.{name}", functools.partial(getattr, value, name, None), Kind.NAME)
                self.add(f"{path}.{name}", getattr(value, name))
        if kind not in self._classes:
            self._classes.add(kind)
            self._class(kind.__name__, kind, is_called=False)

    def _class(self, path: str, cls: type, is_called: bool) -> None:
        """The methods and attributes that are named somewhere; those too that nobody has to name."""
        for base in cls.__mro__:
            if base is object or not _is_own(base):
                continue
            # PyTorch calls `forward` and the like.
            unnamed = vars(base).keys() if issubclass(base, _TORCH_STATE) else filter(_is_special, vars(base))
            self._names |= {name for name in unnamed if name not in _MAKES and name not in _NO_METHODS}
            if is_called:
                self._names |= _MAKES
            self._attributes(path, vars(base))

    def _attributes(self, path: str, attributes: Mapping[str, Any]) -> None:
        done: set[str] = set()
        self._with_attributes.append((path, attributes, done))
        self._named_attributes(path, attributes, done)

    def _named_attributes(self, path: str, attributes: Mapping[str, Any], done: set[str]) -> None:
        for name in [name for name in attributes if name not in done and name in self._names]:
            done.add(name)
            self._hold_name(f"{path}.{name}", attributes, name)

    def _function(self, path: str, function: types.FunctionType) -> None:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._cell(name, cell)
        if not _is_own_file(code.co_filename):
            return
        self.add(f"the defaults of {path}", function.__defaults__)
        self.add(f"the defaults of {path}", function.__kwdefaults__)
        names = _names_in(code)
        self._names |= names
        for name in names & function.__globals__.keys():
            value = function.__globals__[name]
            self._hold_name(name, function.__globals__, name)
            if isinstance(value, types.ModuleType) and _is_own_file(getattr(value, "__file__", None) or ""):
                self._attributes(name, vars(value))

    def _cell(self, name: str, cell: Any) -> None:
        try:
            value = cell.cell_contents
        except ValueError:
            return  # a variable that has no value yet
        self._hold(name, cell, Kind.CELL)
        self.add(name, value)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_own(kind: type) -> bool:
    """Whether a class is written in the user's own program, not in an installed package."""
    module = sys.modules.get(kind.__module__)
    return kind.__module__ == "__main__" or _is_own_file(getattr(module, "__file__", None) or "")


@functools.cache
def _is_own_file(filename: str) -> bool:
    installed = "site-packages" in filename or "dist-packages" in filename
    return bool(filename) and not installed and lines.belongs_to_user(filename)


def _is_special(name: str) -> bool:
    """Methods that code calls without naming them, such as `__call__`."""
    return name.startswith("__") and name.endswith("__")


_MAKES = frozenset(("__init__", "__new__", "__post_init__"))
_NO_METHODS = frozenset((
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__name__", "__qualname__", "__file__",
    "__builtins__", "__slots__", "__repr__", "__str__", "__del__", "__reduce__", "__getstate__", "__setstate__",
))  # fmt: skip


def _slots(cls: type) -> tuple[str, ...]:
    names: list[str] = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@functools.cache
def _names_in(code: types.CodeType) -> frozenset[str]:
    """The global names and attributes in a function, the functions inside it and its strings included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
        elif isinstance(constant, str):
            names.add(constant)  # `getattr(self, "rate")`
    return frozenset(names)
