"""The allowlist of a replay: code, C functions and objects without hidden effects. Calls of others are recorded.

A replayed function does not run. So every function that it called must be known to do nothing that a replay leaves out:
it computes from what it is given, or it changes what `guard_builder` looks at.
"""

import builtins
import collections
import contextvars
import functools
import logging
import math
import os
import re
import sys
import types
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

import jax
import numpy as np
import torch

from ...compat.names import pure_namespaces
from ...compat.names import torch as private


class Domain(Enum):
    """Whose code a file holds."""

    PROGRAM = auto()  # the user's, and that of every package that is not named below
    PYTHON = auto()  # the standard library
    TORCH = auto()
    NUMPY = auto()
    ENGINE = auto()  # ours, and JAX's
    FACADE = auto()  # the documented names of ours


def _folder(module: Any) -> str:
    return os.path.dirname(os.path.abspath(module.__file__)) + os.sep


_ENGINE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_FACADE = os.path.dirname(os.path.dirname(_ENGINE)) + os.sep
_TORCH = _folder(torch)
_STANDARD = _folder(os)
_WORKS_FOR_JAX = ("jax", "jaxlib", "opt_einsum", "ml_dtypes", "scipy")
_WORKS_FOR_TORCH = ("sympy", "mpmath", "networkx")
_FOLDERS = (
    (_ENGINE, Domain.ENGINE),
    (_FACADE, Domain.FACADE),
    (_TORCH, Domain.TORCH),
    (_folder(np), Domain.NUMPY),
    *((os.path.join(os.path.dirname(_folder(jax)[:-1]), each) + os.sep, Domain.ENGINE) for each in _WORKS_FOR_JAX),
    *((os.path.join(os.path.dirname(_TORCH[:-1]), each) + os.sep, Domain.TORCH) for each in _WORKS_FOR_TORCH),
)


@functools.lru_cache(4096)
def _domain_of_file(filename: str) -> Domain | None:
    for folder, domain in _FOLDERS:
        if filename.startswith(folder):
            return domain
    if filename.startswith(("<eval_with_key>", "<__array_function__")):
        return Domain.TORCH
    installed = f"{os.sep}site-packages{os.sep}" in filename or f"{os.sep}dist-packages{os.sep}" in filename
    if filename.startswith("<frozen ") or (filename.startswith(_STANDARD) and not installed):
        return Domain.PYTHON
    return None if filename == "<string>" else Domain.PROGRAM


_PACKAGES = {"torch": Domain.TORCH, "torch_xla": Domain.ENGINE, "jax": Domain.ENGINE, "numpy": Domain.NUMPY}


def domain_of(code: types.CodeType, namespace: Mapping[str, object]) -> Domain:
    """Return whose code `code` with these globals is. Typed or generated code belongs to the module that it runs in."""
    domain = _domain_of_file(code.co_filename)
    if domain is None and _is_of_traces(code, namespace):
        return Domain.TORCH
    if domain is None:
        package = str(namespace.get("__name__", "")).partition(".")[0]
        is_pythons = package in _STANDARD_NAMES or package.startswith("namedtuple_")
        domain = Domain.PYTHON if is_pythons else _PACKAGES.get(package, Domain.PROGRAM)
    return domain


def _is_of_traces(code: types.CodeType, namespace: Mapping[str, object]) -> bool:
    """Return whether PyTorch evaluates this code around a traced function: `lambda arg0,arg1: fn(arg0,arg1)`."""
    expected = [f"arg{place}" for place in range(code.co_argcount)]
    return (
        namespace.keys() == {"fn", "__builtins__"}
        and code.co_name in ("<lambda>", "<module>")
        and set(code.co_names) <= {"fn"}
        and list(code.co_varnames) == expected
    )


_FACADE_FILES = (
    "amp/", "utils/checkpoint.py", "experimental/custom_kernel.py", "experimental/gradient_accumulation.py",
    "core/xla_builder.py", "__init__.py", "experimental/scan.py", "experimental/scan_layers.py",
    "experimental/fori_loop.py", "experimental/decoding.py",
)  # fmt: skip


def code_is_allowed(code: types.CodeType, namespace: dict[str, object]) -> bool:
    """Return whether a Python function of a library, called by the program, is known to have no effects of its own."""
    filename = code.co_filename
    if filename == "<string>":
        return True  # such as what `dataclass` writes
    match domain_of(code, namespace):
        case Domain.ENGINE:
            return True
        case Domain.PYTHON:
            if filename.startswith("<frozen importlib"):
                return code.co_name in pure_namespaces.IMPORTS
            name = filename.removeprefix("<frozen ").removesuffix(">").removeprefix(_STANDARD).removesuffix(".py")
            if name == "weakref":  # an entry leaves a table because what it was about is gone
                return code.co_qualname.endswith(".__init__.<locals>.remove")
            if name == "os":
                return code.co_qualname in pure_namespaces.OF_THE_ENVIRONMENT
            return name in pure_namespaces.PYTHON_FILES
        case Domain.TORCH:
            inside = filename.removeprefix(_TORCH)
            if inside == "autograd/profiler.py":
                return code.co_qualname in pure_namespaces.RANGES
            listed = inside.startswith(pure_namespaces.TORCH_FILES) and not inside.startswith(
                pure_namespaces.NOT_TORCH_FILES
            )
            return listed or filename.startswith("<") or code.co_name in pure_namespaces.TORCH_FUNCTIONS
        case Domain.NUMPY:
            return filename.removeprefix(_folder(np)).startswith(pure_namespaces.NUMPY_FILES)
        case Domain.FACADE:
            return filename.removeprefix(_FACADE).startswith(_FACADE_FILES)
        case _:
            return False


def is_import(code: types.CodeType) -> bool:
    """Return whether a function looks for a module that is not imported yet: what that runs, it runs once."""
    return code.co_name == "_find_and_load" and code.co_filename.startswith("<frozen importlib")


def is_dynamos(code: types.CodeType) -> bool:
    """Return whether a function starts code that `torch.compile` has made of the program's."""
    return code.co_filename.startswith(_TORCH + "_dynamo" + os.sep) and not any(
        code.co_filename == _TORCH + file and code.co_qualname.startswith(function)
        for file, function in pure_namespaces.NOTES_OF_DYNAMO
    )


# Functions written in C.
_PURE = frozenset((
    abs, all, any, ascii, bin, callable, chr, delattr, dir, divmod, format, getattr, hasattr, hash, hex, isinstance,
    issubclass, iter, len, max, min, next, oct, ord, pow, repr, round, setattr, sorted, sum, vars,
    builtins.__build_class__,
    functools.reduce, functools.cmp_to_key,
))  # fmt: skip
_PURE_MODULES = frozenset((math.__name__, "cmath", "_operator", "_abc", "_bisect", "_heapq", "_statistics"))

# Functions that read or write attributes by a name that a watched call does not show.
BY_NAME = frozenset((getattr, hasattr, setattr, delattr))
BY_ANY_NAME = frozenset((vars, dir))
ANY_NAME = frozenset(("__dict__", "__getattribute__", "__getstate__", "__reduce__", "__reduce_ex__", "attrgetter"))

_PLAIN = frozenset((
    list, dict, set, frozenset, tuple, str, bytes, bytearray, int, float, complex, bool, range, slice, type(None),
    collections.deque, collections.OrderedDict, collections.defaultdict, types.MappingProxyType, types.GeneratorType,
    type({}.keys()), type({}.values()), type({}.items()), torch.Size, torch.dtype, torch.device,
))  # fmt: skip
_OF_OBJECTS = frozenset(("__init_subclass__", "__format__", "__subclasshook__", "__class_getitem__"))

_NOT_OPERATORS = frozenset(("from_file", "seed", "manual_seed", "share_memory_", "record_stream", "_print", "set_"))
_ARRAY_METHODS = frozenset((
    "sum", "mean", "astype", "reshape", "tolist", "item", "copy", "min", "max", "prod", "any", "all",
    "transpose", "ravel",
    "flatten", "squeeze", "argmax", "argmin", "fill", "sort", "tobytes", "view",
))  # fmt: skip
_ARRAY_MAKERS = frozenset(("array", "asarray", "zeros", "empty", "arange", "concatenate", "where", "dot", "full"))


@functools.cache
def _operators() -> frozenset[str]:
    names = (name.partition("::") for name in private.all_operator_names())
    return frozenset(rest.partition(".")[0] for space, _, rest in names if space == "aten") - _NOT_OPERATORS


def is_plain(value: object) -> bool:
    """Return whether a method of `value` written in C changes nothing else than `value`."""
    kind = value if isinstance(value, type) else type(value)
    return kind in _PLAIN or (kind.__module__ == "torch.return_types")


def call_by_library_is_allowed(called: object, frame: types.FrameType) -> bool:
    """Return whether a C function that is allowed in some calls only is allowed in the call that `frame` makes.

    The standard library uses `id` to mark objects as visited, in a dictionary made for that. Other callers may use it
    to distinguish arguments, which are new objects at every call.
    """
    name = frame.f_code.co_filename.removeprefix(_STANDARD)
    if called is not id:
        return called is sys.getrecursionlimit and name == "inspect.py"
    if name != "copy.py":
        return name == "inspect.py"
    asked = frame.f_back
    return (asked is not None and asked.f_code.co_filename == frame.f_code.co_filename) or not frame.f_locals["memo"]


def call_is_allowed(called: object) -> bool:
    """Return whether a function written in C is known to have no effect but on what it is given."""
    owner = getattr(called, "__self__", None)
    name = getattr(called, "__name__", "")
    if isinstance(owner, torch.Tensor):
        return name in _operators() or name in pure_namespaces.TENSOR_METHODS
    if owner is None or isinstance(owner, types.ModuleType):
        if isinstance(called, types.BuiltinFunctionType) and called in _PURE:
            return True
        module = str(getattr(called, "__module__", None) or getattr(owner, "__name__", ""))
        if module.startswith("torch") or (owner is None and getattr(torch, name, None) is called):
            return name in _operators() or name in pure_namespaces.TORCH_CALLS
        if module.startswith("numpy"):
            return name in _ARRAY_MAKERS
        return module in _PURE_MODULES or (module, name) == ("_weakref", "_remove_dead_weakref")
    if type(owner).__name__.startswith("pybind11_detail_function_record"):  # how PyTorch 2.15 binds functions of C++
        return name in pure_namespaces.TORCH_CALLS
    if isinstance(owner, np.ndarray):
        return name in _ARRAY_METHODS
    if owner is private.FUNCTIONS or getattr(owner, "__module__", "") == "torch._C._VariableFunctions":
        return name in _operators() or name in pure_namespaces.TORCH_CALLS
    if isinstance(owner, (types.MethodWrapperType, contextvars.ContextVar)) or is_plain(owner):
        return True
    if isinstance(owner, CONTAINERS) and any(hasattr(kind, name) for kind in CONTAINERS if isinstance(owner, kind)):
        return True
    if owner is object and name == "__new__":
        return True
    if name == "apply" and isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        return True  # written in C since PyTorch 2.15; it calls what the program defines, which is watched
    if name in ANY_NAME and getattr(object, name, None) is getattr(type(owner), name, None):
        return True
    return name in _OF_OBJECTS or isinstance(owner, (np.generic, np.dtype))


_CLOCK = "looks at the clock"
_WORDS = {
    "print": "prints",
    "input": "reads the keyboard",
    "open": "opens a file",
    "sleep": "sleeps",
    **dict.fromkeys(("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"), _CLOCK),
}


def said(called: object) -> str:
    """Return in words why a call of this function is not allowed."""
    module, name = getattr(called, "__module__", None), getattr(called, "__qualname__", repr(called))
    if name in _WORDS and module in ("builtins", "time", "io", "_io"):
        return _WORDS[name]
    owner = getattr(called, "__self__", None)
    if module is None and owner is not None and not isinstance(owner, types.ModuleType):
        module = type(owner).__module__
    where = f"{module}." if module and module != "builtins" else ""
    return f"calls {where}{name}, which may do more than return a value"


# Objects. Of these a replay only has to know that they are the same ones: they never change.
CONSTANT = (
    str, bytes, int, float, complex, type(None), bool, range, slice, type(...), type(NotImplemented), torch.dtype,
    torch.device, torch.Size, torch.layout, torch.memory_format, np.dtype, np.ufunc, type(np.prod), types.CodeType,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.ClassMethodDescriptorType, types.GenericAlias, types.UnionType, type(torch.finfo(torch.float32)),
    type(torch.iinfo(torch.int32)), re.Pattern,
)  # fmt: skip
CONSTANT_TYPES = frozenset(CONSTANT)

# Of these the program only sees what it names: whatever they do, functions do that are watched.
SEEN_BY_NAME = (logging.Logger, torch.autograd.profiler.record_function)

# Containers that keep their contents in C; `guard_builder` reads them.
CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)

_DICT_AND_WEAKREFS = 16
_HEAP_TYPE = 1 << 9


def state_is_in_python(kind: type) -> bool:
    """Return whether `__dict__`, slots or a container's contents hold everything an object of this class has."""
    below: type | None = kind
    slots = 0
    while below is not None and below.__flags__ & _HEAP_TYPE:
        own = vars(below).get("__slots__", ())
        slots += 1 if isinstance(own, str) else len(tuple(own))
        if "__module__" not in vars(below):
            return False
        below = below.__base__
    if below is None or (below is not object and not issubclass(below, (*CONTAINERS, str, int, float))):
        return below is types.SimpleNamespace
    room = below.__basicsize__ + 8 * slots + _DICT_AND_WEAKREFS
    has_state = any("__dict__" in vars(each) or "__slots__" in vars(each) for each in kind.__mro__[:-1])
    return kind.__basicsize__ <= room and (has_state or kind is below)


def is_torchs(kind: type) -> bool:
    """Return whether a class is PyTorch's, ours or made of one: its code, which is known, reads its attributes."""
    return any(_top(base) in ("torch", "torch_xla") for base in kind.__mro__)


def is_allowed_package(module: str) -> bool:
    """Return whether what a module holds is PyTorch's, JAX's or ours."""
    return module.partition(".")[0] in ("torch", "torch_xla", "jax", "jaxlib")


def is_allowed_module(name: str) -> bool:
    """Return whether a module is of a known package or of Python's own library."""
    return is_allowed_package(name) or name.partition(".")[0] in _STANDARD_NAMES


def is_of_library(kind: type) -> bool:
    """Return whether the code of a class is known, and need not be looked at."""
    top = _top(kind)
    return top in ("torch", "torch_xla", "jax", "jaxlib", "numpy", "pybind11_builtins") or top in _STANDARD_NAMES


def _top(kind: type) -> str:
    return kind.__module__.partition(".")[0]


_STANDARD_NAMES = frozenset(sys.stdlib_module_names) - {"__main__"}
