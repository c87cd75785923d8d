"""Let PyTorch's C++ make the views of our tensors, as it makes those of tensors without memory.

Operators like `view` and `as_strided`, in which `transpose`, `select` and `slice` end, only look at sizes and strides,
and their Meta kernels do that for any device. PyTorch takes no kernel of C++ from Python. A kernel in Python that calls
the Meta kernel costs 3 to 5 µs a view, for arguments on their way from C++ to Python and back: a tenth of a recorded
step. But an operator is a table of kernels, one for each dispatch key. So the entry of the key Meta is copied into that
of PrivateUse1, where a kernel of Python's was registered.

Where the entries are is read from an operator made for that: kernels are registered for it, and the words that change
are their entries. Nothing is written unless an operator's own entry holds a kernel of Python's at the same place.
"""

import ctypes
from collections.abc import Iterable
from typing import Any

import torch

# An entry begins with the object of a kernel, the function that calls it with a stack of values, and two that are
# called with plain arguments: one with numbers, one with symbols. The last word belongs to the entry itself.
_COPIED = 4
# The words of an operator that are read: its name and schema, and the first third of its table, where our keys are.
_READ = 300

_count = 0


def take_meta_kernels(overloads: Iterable[Any]) -> bool:
    """Let the C++ kernels for Meta serve PrivateUse1 too; return False if this PyTorch keeps its kernels elsewhere.

    Each of the `overloads` has a kernel of Python's for PrivateUse1, which calls that for Meta. It stays registered,
    and takes its place again when anything is registered for the overload and PrivateUse1 later.
    """
    found = _entries()
    if found is None:
        return False
    ours, theirs, of_python = found
    tables = [_words_of(overload._handle) for overload in overloads]
    if any(table[ours + 1] != of_python for table in tables):
        return False
    for table in tables:
        kernel = table[theirs : theirs + _COPIED]
        if all(kernel[:2]) and kernel[1] != of_python:
            # The entry holds the object: its count of holders comes behind the word for its class.
            ctypes.c_uint32.from_address(kernel[0] + ctypes.sizeof(ctypes.c_void_p)).value += 1
            table[ours : ours + _COPIED] = kernel
    return True


def _words_of(handle: object) -> Any:
    """Return the first words of an operator: a handle is an object bound by C++, and begins with its address."""
    place = ctypes.c_uint64.from_address(id(handle) + object.__basicsize__).value
    return (ctypes.c_uint64 * _READ).from_address(ctypes.c_uint64.from_address(place).value)


def _entries() -> tuple[int, int, int] | None:
    """Return where the entries of PrivateUse1 and Meta begin, and the function that calls kernels of Python's."""
    global _count
    _count += 1  # PyTorch keeps names
    library = torch.library.Library("torch_xla_layout", "FRAGMENT")
    try:
        name = f"looked_at_{_count}"
        library.define(f"{name}(Tensor self) -> Tensor")
        words = _words_of(torch._C._dispatch_find_schema_or_throw(f"torch_xla_layout::{name}", ""))
        places: list[int] = []
        for key in ("PrivateUse1", "PrivateUse2", "Meta"):
            before = list(words)
            library.m.impl(name, key, _never_called)  # type: ignore[union-attr]
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


def _never_called(tensor: torch.Tensor) -> torch.Tensor:
    raise AssertionError("registered for its place in a table, and not to be called")
