"""Build the guards of a function: walk its closure, globals and arguments through all objects they reach.

In the program's code it follows the executed instructions and the names that they read; attributes that no instruction
names are left out. PyTorch's code is assumed to be constant, the attributes of its objects are not. An object that it
cannot compare is a reason not to replay.
"""

import abc
import builtins
import contextvars
import functools
import inspect
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from ...compat.names import torch as private
from . import pure_allowlist
from .accessed_names import Executed, Reads
from .guards import MISSING, Container, Look, Reached, key_text

# With more objects or entries than this, comparing them in every step costs more than recording the step.
MOST_OBJECTS = 50_000
MOST_ENTRIES = 200_000
# The largest tensor or array on the host that is compared byte by byte.
MOST_HOST_BYTES = 1 << 16

_TENSORS = (torch.Tensor, torch.nn.Parameter)


class TooMuch(Exception):
    """A function sees more than can be looked at every step."""


def reach(roots: Iterable[tuple[str, object]], reads: Reads) -> Reached:
    """Return what code that has read `reads` can reach from `roots`, pairs of a name for messages and a value."""
    roots = [*roots, *_global_hooks()]
    while True:
        walk = _Walk(reads)
        for path, root in roots:
            walk.add(path, root)
        walk.run()
        # Of what `torch.compile` has taken in, all counts: which names it read is in no instruction that was executed.
        executed = Executed()
        executed.whole = walk.passed_by if reads.compiled else set()
        more = executed.reads()
        if reads.covers(more):
            break
        reads = reads.with_those_of(more)
    walk.finish()
    walk.found.accept_all()
    return walk.found


def _global_hooks() -> list[tuple[str, Any]]:
    found = [
        (f"torch.nn.modules.module.{name}", value)
        for name, value in vars(modules).items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]
    found += [
        (f"torch.optim.optimizer.{name}", value)
        for name, value in vars(optimizers).items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]
    return found


class _Walk:
    def __init__(self, reads: Reads) -> None:
        self.found = Reached()
        self.reads = reads
        self._seen: dict[int, object] = {}
        self._held: set[tuple[int, Look]] = set()
        self._strict: set[int] = set()
        self._queue: deque[tuple[str, object, bool]] = deque()
        self._entries = 0
        self._classes: set[type] = set()
        self._named: dict[int, tuple[str, Mapping[str, object], set[str]]] = {}
        self._weak: list[tuple[str, object]] = []
        self.passed_by: set[types.CodeType] = set()  # functions of the program that were not executed

    def add(self, path: str, value: object, strict: bool = True) -> None:
        """Record that `value` is reachable. A value that is not `strict` was named nowhere, and may be of any kind."""
        if value is MISSING or type(value) in pure_allowlist.CONSTANT_TYPES:
            return
        if id(value) not in self._seen or (strict and id(value) not in self._strict):
            self._seen[id(value)] = value  # alive, so that its id stays its own
            if strict:
                self._strict.add(id(value))
            self._queue.append((path, value, strict))

    def run(self) -> None:
        while self._queue:
            if len(self._seen) > MOST_OBJECTS or self._entries > MOST_ENTRIES:
                raise TooMuch("it sees too many objects: pass it what it needs as arguments")
            path, value, strict = self._queue.popleft()
            try:
                self._visit(path, value, strict)
            except Exception as error:  # raised by the object's own code, such as a proxy without a class
                self._unknown(path, f"what raises {type(error).__name__} when it is looked at")

    def finish(self) -> None:
        found = self.found
        for path, mapping, names in self._named.values():
            found.containers.append(Container(path, mapping, Look.NAMED, tuple(sorted(names))))
        for path, target in self._weak:
            if target is not None and id(target) not in self._seen:
                found.unknown.append(f"it sees a weak reference ({path}) to something that it does not see otherwise")
        found.seen = self._seen

    def _visit(self, path: str, value: Any, strict: bool) -> None:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            self._tensor(path, value, strict)
        elif kind is np.ndarray:
            self._array(path, value, strict)
        elif value is sys.modules:
            self._loaded_modules(path)
        elif kind in (dict, OrderedDict, defaultdict, types.MappingProxyType):
            if kind is defaultdict:
                self._hold(f"the default of {path}", functools.partial(getattr, value, "default_factory"), Look.NAME)
                self.add(f"the default of {path}", value.default_factory)
            self._mapping(path, value, strict)
        elif kind in (list, tuple, set, frozenset, deque):
            self._sequence(path, value, strict)
        elif kind is types.FunctionType:
            self._function(path, value)
        elif kind is types.MethodType:
            self.add(path.rpartition(".")[0] or path, value.__self__, strict)
            self.add(path, value.__func__, strict)
        elif kind is functools.partial:
            for part in (value.func, value.args, value.keywords):
                self.add(path, part, strict)
        elif isinstance(value, property):
            for part in (value.fget, value.fset):
                self.add(path, part, strict)
        elif isinstance(value, (classmethod, staticmethod)):
            self.add(path, value.__func__, strict)
        elif kind is functools.cached_property:
            self.add(path, value.func, strict)
        elif kind is types.CellType:  # as a class with annotations has one, from Python 3.14 on
            self._cell(path, value, strict)
        elif isinstance(value, type):
            self._class(path, value)
        elif isinstance(value, types.ModuleType):
            self._attributes(path, vars(value), strict=not pure_allowlist.is_allowed_package(value.__name__))
        else:
            self._other(path, value, strict)

    def _other(self, path: str, value: Any, strict: bool) -> None:
        kind = type(value)
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._builtin(path, value, strict)
        elif isinstance(value, contextvars.ContextVar):
            self._hold(path, functools.partial(value.get, MISSING), Look.NAME)
            self.add(path, value.get(MISSING), strict)
        elif isinstance(value, weakref.ReferenceType):
            if strict:
                self._weak.append((path, value()))
            self._hold(path, lambda: value() is None, Look.NAME)
        elif isinstance(value, (functools._lru_cache_wrapper,)):
            if strict and _is_own(value.__wrapped__):
                self._unknown(path, "a function with a cache")
            self.add(path, value.__wrapped__, strict)
        elif kind is types.GeneratorType and inspect.getgeneratorstate(value) == inspect.GEN_CREATED:
            # Such as that of a context manager which decorates a function: it makes itself again at every call.
            self._hold(path, functools.partial(inspect.getgeneratorstate, value), Look.NAME)
        elif isinstance(value, jax.Array) or _is_opaque(kind):
            return
        elif pure_allowlist.state_is_in_python(kind):
            self._object(path, value, strict)
        elif strict and not _is_torchs_own(kind):
            self._unknown(path, f"an object of class `{kind.__qualname__}`")

    def _unknown(self, path: str, what: str) -> None:
        self.found.unknown.append(f"it sees {what} ({path}), whose contents are not known")

    def _builtin(self, path: str, value: Any, strict: bool) -> None:
        owner = value.__self__
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            self.add(f"the object of {path}", owner, strict)
        if strict and not pure_allowlist.call_is_allowed(value):
            self.found.unknown.append(
                f"it sees `{getattr(value, '__qualname__', value)}` ({path}), which {pure_allowlist.said(value)}"
            )

    def _tensor(self, path: str, tensor: torch.Tensor, strict: bool) -> None:
        found = self.found
        if tensor.device.type == "xla":
            if all(tensor is not each for each in found.tensors[-1:]) and id(tensor) not in found.tensor_ids:
                found.tensor_ids.add(id(tensor))
                found.tensors.append(tensor)
                found.tensor_paths.append(path)
                self._hold(path, tensor, Look.GEOMETRY)
                self._tensor_attributes(path, tensor, strict)
            if type(tensor) not in _TENSORS:
                found.unknown.append(f"it sees a tensor of class `{type(tensor).__qualname__}` ({path})")
            elif tensor.grad_fn is not None:
                found.unknown.append(f"it sees a tensor that was computed with gradients before ({path}): detach it")
            elif not tensor.requires_grad and tensor.grad is not None:
                found.unknown.append(f"it sees a tensor with a gradient that requires none ({path})")
        else:
            simple = tensor.device.type == "cpu" and tensor.layout is torch.strided and type(tensor) in _TENSORS
            if not simple or tensor.is_quantized or tensor.nbytes > MOST_HOST_BYTES:
                if strict:
                    self._unknown(path, f"a tensor on {tensor.device.type} of {tensor.nbytes} bytes")
                self._hold(path, functools.partial(private.version_of, tensor), Look.NAME)
                return
            self._hold(path, tensor, Look.HOST)
            self._tensor_attributes(path, tensor, strict)

    def _tensor_attributes(self, path: str, tensor: torch.Tensor, strict: bool) -> None:
        self._mapping(path, tensor.__dict__, strict, Look.ATTRIBUTES)
        if tensor.requires_grad:
            self._hold(f"the hooks of {path}", tensor, Look.HOOKS)
            self.add(f"the hooks of {path}", private.hooks_of(tensor))
            self.add(f"the hooks of {path}", private.hooks_after_accumulation_of(tensor))

    def _array(self, path: str, array: Any, strict: bool) -> None:
        if array.dtype.hasobject or array.nbytes > MOST_HOST_BYTES:
            if strict:
                self._unknown(path, f"an array of {array.dtype} of {array.nbytes} bytes")
        else:
            self._hold(path, array, Look.ARRAY)

    def _hold(self, path: str, held: object, kind: Look) -> None:
        if kind is not Look.NAME and (id(held), kind) in self._held:
            return
        self._held.add((id(held), kind))
        self.found.containers.append(Container(path, held, kind))

    def _mapping(self, path: str, mapping: Mapping[Any, Any], strict: bool, kind: Look = Look.MAP) -> None:
        self._hold(path, mapping, kind)
        self._entries += len(mapping)
        items = dict.items(mapping) if isinstance(mapping, dict) else mapping.items()
        for key, value in list(items):
            if not isinstance(key, str):
                self.add(f"a key of {path}", key, strict)
            self.add(f"{path}.{key}" if kind is Look.ATTRIBUTES else f"{path}[{key_text(key)}]", value, strict)

    def _loaded_modules(self, path: str) -> None:
        """Add the program's own modules. Objects of other modules are added where they are named."""
        self._names(
            path, sys.modules, [name for name in list(sys.modules) if not pure_allowlist.is_allowed_module(name)]
        )

    def _sequence(self, path: str, sequence: Any, strict: bool) -> None:
        self._entries += len(sequence)
        if not isinstance(sequence, (tuple, frozenset)):
            self._hold(path, sequence, Look.SEQUENCE)
        for index, value in enumerate(sequence):
            self.add(f"{path}[{index}]", value, strict)

    def _object(self, path: str, value: object, strict: bool) -> None:
        kind = type(value)
        self._hold(f"the class of {path}", value, Look.OBJECT)
        attributes = getattr(value, "__dict__", None)
        of_torch = pure_allowlist.is_torchs(kind)
        if isinstance(attributes, dict):
            if isinstance(value, pure_allowlist.SEEN_BY_NAME):
                self._attributes(path, attributes, strict=not self.reads.everything)
            elif of_torch or self.reads.everything or not _is_programs(kind):
                self._all_attributes(path, attributes, strict, of_torch)
            else:
                self._attributes(path, attributes)
        for name in _slots(kind):
            self._hold(f"{path}.{name}", functools.partial(getattr, value, name, MISSING), Look.NAME)
            self.add(f"{path}.{name}", getattr(value, name, MISSING), strict)
        if isinstance(value, dict):
            self._mapping(path, value, strict)
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            self._sequence(path, value, strict)
        self.add(kind.__name__, kind, strict)

    def _all_attributes(self, path: str, attributes: Mapping[str, object], strict: bool, of_torch: bool) -> None:
        """Guard attributes that the program has not named, which PyTorch may read: they must stay as they are."""
        self._hold(path, attributes, Look.ATTRIBUTES)
        self._entries += len(attributes)
        for name, value in list(attributes.items()):
            self.add(
                f"{path}.{name}", value, strict and (not of_torch or name in self.reads.names or self.reads.everything)
            )

    def _class(self, path: str, cls: type) -> None:
        """Add the methods and attributes that executed code names, and the methods that Python calls without a name."""
        metaclass: Any = type(cls)
        bases: list[type] = [*cls.__mro__, *metaclass.__mro__]
        if isinstance(cls, abc.ABCMeta):
            token = abc.get_cache_token()
            self._hold(
                f"that no class came to belong to {cls.__name__}", lambda: abc.get_cache_token() == token, Look.NAME
            )
        for base in bases:
            if base in self._classes or base is object or base is type:
                continue
            self._classes.add(base)
            if base.__flags__ & (1 << 9) == 0 or not _is_programs(base):
                if issubclass(base, torch.nn.Module):
                    self._attributes(base.__name__, vars(base), frozenset(("forward",)))
                elif base not in _known_classes() and pure_allowlist.is_of_library(base) is False:
                    self._unknown(path, f"the class `{base.__qualname__}`")
                continue
            attributes = vars(base)
            self._hold(f"the bases of {base.__name__}", functools.partial(getattr, base, "__mro__"), Look.NAME)
            # A method that Python calls by itself, such as `__bool__`, may be added later.
            self._hold(f"the names in {base.__name__}", functools.partial(len, attributes), Look.NAME)
            of_torch = pure_allowlist.is_torchs(base)
            unnamed = {name for name in attributes if (of_torch or _is_special(name)) and name not in _NO_METHODS}
            # A computed name occurs in no code; the function that it led to has run.
            ran = self.reads.codes
            unnamed.update(name for name, value in attributes.items() if not _codes(value).isdisjoint(ran))
            self._attributes(base.__name__, attributes, frozenset(unnamed))

    def _attributes(
        self, path: str, attributes: Mapping[str, object], more: frozenset[str] = frozenset(), strict: bool = True
    ) -> None:
        """Guard the attributes that the program's code has read, whether they exist or not."""
        names = self.reads.names | more
        if self.reads.everything and "__name__" not in attributes and "__module__" not in attributes:
            names |= attributes.keys()
        self._names(path, attributes, names, strict)

    def _names(self, path: str, mapping: Mapping[str, object], names: Iterable[str], strict: bool = True) -> None:
        _, _, before = self._named.setdefault(id(mapping), (path, mapping, set()))
        for name in names:
            if name not in before:
                before.add(name)
                value = mapping.get(name)
                named = name in self.reads.names or _is_special(name) or not path
                self.add(f"{path}.{name}" if path else name, value, strict and named and name not in _NO_METHODS)
        self._entries += len(before)

    def _function(self, path: str, function: types.FunctionType) -> None:
        code = function.__code__
        domain = pure_allowlist.domain_of(code, function.__globals__)
        is_programs = domain is pure_allowlist.Domain.PROGRAM
        executed = [code, *_inner(code)]
        read = [self.reads.codes[each] for each in executed if each in self.reads.codes]
        if is_programs and not read:
            self.passed_by.add(code)
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._cell(name, cell, strict=domain is not pure_allowlist.Domain.TORCH)
        if vars(function):
            self._attributes(path, vars(function), frozenset(("__wrapped__",)))
        if not is_programs:
            return
        self.found.codes.add(code)
        self._hold(path, function, Look.FUNCTION)
        self.add(f"the defaults of {path}", function.__defaults__)
        self.add(f"the defaults of {path}", function.__kwdefaults__)
        names: frozenset[str] = frozenset().union(*read)
        self._names("", function.__globals__, names)
        beyond = {name for name in names if name not in function.__globals__}
        if beyond:
            self._names("", vars(builtins), beyond)
        for name in self.reads.imports:
            self._names("", sys.modules, [name, *([name.partition(".")[0]] if "." in name else [])])

    def _cell(self, name: str, cell: Any, strict: bool) -> None:
        self._hold(name, cell, Look.CELL)
        try:
            value = cell.cell_contents
        except ValueError:
            return  # a variable that has no value yet
        self.add(name, value, strict)


@functools.cache
def _known_classes() -> frozenset[type]:
    return frozenset(value for value in vars(builtins).values() if isinstance(value, type)) | frozenset(
        (OrderedDict, defaultdict, deque, functools.partial, types.SimpleNamespace)
    )


def _is_opaque(kind: type) -> bool:
    """Return whether an object serves annotations or is a module's specification: nothing is computed with it."""
    return kind.__module__ in ("typing", "importlib._bootstrap", "importlib.machinery")


def _is_torchs_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "torch_xla", "jaxlib", "jax") and kind is not torch.Generator


def _is_own(function: Any) -> bool:
    """Return whether a function is the user's own, not one of an installed package."""
    code = getattr(function, "__code__", None)
    return (
        code is not None
        and "site-packages" not in code.co_filename
        and pure_allowlist.domain_of(code, function.__globals__) is pure_allowlist.Domain.PROGRAM
    )


def _is_programs(kind: type) -> bool:
    """Return whether a class is defined by the program, so that its executed names are known."""
    return not pure_allowlist.is_of_library(kind)


def _is_special(name: str) -> bool:
    """Return whether code calls the method without naming it, such as `__call__`."""
    return name.startswith("__") and name.endswith("__")


_NO_METHODS = frozenset((
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__name__", "__qualname__", "__file__",
    "__builtins__", "__slots__", "__repr__", "__str__", "__del__", "__reduce__", "__getstate__", "__setstate__",
    "__abstractmethods__", "__parameters__", "__orig_bases__", "__match_args__", "__dataclass_params__",
    "__static_attributes__", "__firstlineno__", "__spec__", "__loader__", "__subclasshook__",
))  # fmt: skip


def _slots(cls: type) -> tuple[str, ...]:
    names: list[str] = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        own = [slots] if isinstance(slots, str) else list(slots)
        # A private name is kept under the name of its class.
        names += [
            f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            for name in own
        ]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _codes(value: object) -> set[types.CodeType]:
    """Return the code that runs when an attribute of a class is used: a method's, or a property's getter and setter."""
    parts = (value.fget, value.fset) if isinstance(value, property) else (getattr(value, "__func__", value),)
    return {part.__code__ for part in parts if isinstance(part, types.FunctionType)}


@functools.lru_cache(4096)
def _inner(code: types.CodeType) -> tuple[types.CodeType, ...]:
    """Return the code of the functions that are made inside a function."""
    found: list[types.CodeType] = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += [constant, *_inner(constant)]
    return tuple(found)


def not_found(reached: Reached, reads: Reads) -> list[str]:
    """Return the executed code of the program that belongs to no function that was reached."""
    if reads.compiled:
        return []
    known_codes = {*reached.codes, *(inner for code in reached.codes for inner in _inner(code))}
    return [
        f"it runs `{code.co_qualname}` ({code.co_filename}:{code.co_firstlineno}), which cannot be found from its "
        f"arguments, closure and globals"
        for code in reads.codes
        if code not in known_codes
    ]
