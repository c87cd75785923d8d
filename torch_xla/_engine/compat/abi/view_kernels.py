"""Let PyTorch's C++ make the views of our tensors, as it makes those of tensors without memory.

Operators like `view` and `as_strided`, in which `transpose`, `select` and `slice` end, only look at sizes and strides,
and their Meta kernels do that for any device. PyTorch takes no kernel of C++ from Python. A kernel in Python that calls
the Meta kernel costs 3 to 5 µs a view, for arguments on their way from C++ to Python and back: a tenth of a recorded
step. But an operator is a table of kernels, one for each dispatch key. So the entry of the key Meta is copied into that
of PrivateUse1, where a kernel of Python's was registered.

Where the entries are is read from an operator made for that: kernels are registered for it, and the words that change
are their entries. The copy is rehearsed on another operator, which is then called. Nothing is written to an operator of
PyTorch's unless that worked, and unless its own entries are the kernels that PyTorch says they are.
"""

import ctypes
from collections.abc import Iterable

import torch

from ..names.torch import OpOverload
from ..names.torch_dispatch_keys import PRIVATEUSE1_KEYS

Words = ctypes.Array[ctypes.c_uint64]

# An entry begins with the object of a kernel, the function that calls it with a stack of values, and two that are
# called with plain arguments: one with numbers, one with symbols. The last word belongs to the entry itself.
_COPIED = 4
# The words of an operator that are read: its name and schema, and the first third of its table, where our keys are.
_READ = 300

_SPACE = "torch_xla_layout"
_count = 0


def take_meta_kernels(overloads: Iterable[OpOverload]) -> bool:
    """Let the C++ kernels for Meta serve PrivateUse1 too; return False if this PyTorch keeps its kernels elsewhere.

    Each of the `overloads` has a kernel of Python's for PrivateUse1, which calls that for Meta. It stays registered,
    and takes its place again when anything is registered for the overload and PrivateUse1 later.
    """
    found = _entries()
    if found is None or not _is_rehearsed(*found):
        return False
    ours, theirs, of_python = found
    tables = []
    for overload in overloads:
        table = _words_of(overload._handle)
        if table[ours + 1] != of_python or not _is_as_said(overload.name(), table, theirs):
            return False
        tables.append(table)
    for table in tables:
        if table[theirs + 1] != of_python:
            _copy(table, ours, theirs)
    return True


def _copy(table: Words, ours: int, theirs: int) -> None:
    kernel = table[theirs : theirs + _COPIED]
    _holders(kernel[0]).value += 1  # the entry is one
    for nth, word in enumerate(kernel):
        table[ours + nth] = word


def _holders(kernel: int) -> ctypes.c_uint32:
    """Return how many hold the object of a kernel, which comes behind the word for its class."""
    return ctypes.c_uint32.from_address(kernel + ctypes.sizeof(ctypes.c_void_p))


def _words(thing: object, count: int) -> Words:
    """Return the first words of an object of C++ that PyTorch has bound: one in Python begins with its address."""
    place = ctypes.c_uint64.from_address(id(thing) + object.__basicsize__).value
    return (ctypes.c_uint64 * count).from_address(place)


def _words_of(handle: object) -> Words:
    """Return the first words of an operator, whose address is all that a handle has first."""
    return (ctypes.c_uint64 * _READ).from_address(_words(handle, 1)[0])


def _is_as_said(name: str, table: Words, theirs: int) -> bool:
    """Return whether PyTorch says that the kernel for Meta of an operator is this entry, and counts who holds it."""
    kernel = table[theirs : theirs + _COPIED]
    if not all(kernel[:2]):
        return False
    before = _holders(kernel[0]).value
    said = torch._C._dispatch_get_computed_kernel_for_dispatch_key(name, "Meta")
    return _words(said, _COPIED)[:] == kernel and _holders(kernel[0]).value == before + 1


def _made(library: torch.library.Library) -> OpOverload:
    """Return a new operator with one tensor and one result."""
    global _count
    _count += 1  # PyTorch keeps names
    name = f"looked_at_{_count}"
    library.define(f"{name}(Tensor self) -> Tensor")
    return getattr(getattr(torch.ops, _SPACE), name).default


def _entries() -> tuple[int, int, int] | None:
    """Return where the entries of PrivateUse1 and Meta begin, and the function that calls kernels of Python's."""
    library = torch.library.Library(_SPACE, "FRAGMENT")
    try:
        made = _made(library)
        words = _words_of(made._handle)
        places: list[int] = []
        for key in ("PrivateUse1", "PrivateUse2", "Meta"):
            before = list(words)
            library.m.impl(made._opname, key, _of_python)  # type: ignore[union-attr]
            changed = next((place for place, word in enumerate(before) if word != words[place]), None)
            if changed is None:
                return None
            places.append(changed)
        ours, beside, theirs = places
        functions = {words[place + 1] for place in places}
    finally:
        library._destroy()
    # Three keys of backends in one table, whose entries are all of one size.
    size = beside - ours
    if size < _COPIED or theirs <= beside or (theirs - ours) % size or len(functions) != 1:
        return None
    return ours, theirs, functions.pop()


def _is_rehearsed(ours: int, theirs: int, of_python: int) -> bool:
    """Return whether the copy makes a kernel of C++ serve PrivateUse1, for an operator of our own."""
    library = torch.library.Library(_SPACE, "FRAGMENT")
    try:
        made = _made(library)
        library.m.impl(made._opname, "PrivateUse1", _of_python)  # type: ignore[union-attr]
        library.m.impl_t_t(made._opname, "Meta", "")  # type: ignore[union-attr]  # it returns its argument
        table = _words_of(made._handle)
        if table[ours + 1] != of_python or not _is_as_said(made.name(), table, theirs):
            return False
        tensor = torch.empty(0)
        if made.redispatch(PRIVATEUSE1_KEYS, tensor) is tensor:
            return False
        _copy(table, ours, theirs)
        return made.redispatch(PRIVATEUSE1_KEYS, tensor) is tensor
    finally:
        library._destroy()


def _of_python(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(1)
