"""Give PyTorch the memory of the host where it asks our hooks for pinned memory.

`torch.empty(..., pin_memory=True)` and `torch.autograd.graph.save_on_cpu(pin_memory=True)` ask the hooks of the
accelerator for an allocator, in C++, and hooks written in Python cannot have one. PJRT reads any memory of the host, so
the allocator of the CPU is right. PyTorch's library exports the function that returns it, and that function becomes the
method: no line of Python runs, and any thread may call it.
"""

import ctypes
from typing import Any

import torch

from .supported_release import libc10, refuse

_ALLOCATOR = "_ZN3c1015GetCPUAllocatorEv"
# The position of the method `getPinnedMemoryAllocator` in the hooks, the same from PyTorch 2.11 to 2.15. We copy more
# words than there are methods, and the two about the class in front of them.
_GET_PINNED_MEMORY_ALLOCATOR = 12
_WORDS_BEFORE, _METHODS = 2, 40

_keep: list[Any] = []


def answer_with_memory_of_the_host(hooks: object) -> None:
    """Make the registered `hooks` return the allocator of the CPU. PrivateUse1 must have its name: PyTorch asks then.

    Raises `RuntimeError`, and leaves the hooks as they are, if PyTorch does not ask where we expect it.
    """
    library = libc10()
    allocator = getattr(library, _ALLOCATOR, None)
    if allocator is None:
        refuse("the allocators", f"libc10 exports no {_ALLOCATOR}")
    word = ctypes.sizeof(ctypes.c_void_p)
    # An object of a class bound by C++ has the address of the C++ object behind its head, and that begins with the
    # address of its methods.
    theirs = ctypes.c_void_p.from_address(ctypes.c_void_p.from_address(id(hooks) + object.__basicsize__).value or 0)
    methods = theirs.value or 0
    table = ctypes.c_void_p * (_WORDS_BEFORE + _METHODS)
    copied = table(*table.from_address(methods - _WORDS_BEFORE * word))
    copied[_WORDS_BEFORE + _GET_PINNED_MEMORY_ALLOCATOR] = ctypes.cast(allocator, ctypes.c_void_p).value
    theirs.value = ctypes.addressof(copied) + _WORDS_BEFORE * word
    try:
        torch.empty(1, device="cpu", pin_memory=True)
    except (RuntimeError, NotImplementedError) as error:
        theirs.value = methods
        refuse("the methods of accelerator hooks", f"torch.empty(1, pin_memory=True) raised {error}")
    _keep.append(copied)
