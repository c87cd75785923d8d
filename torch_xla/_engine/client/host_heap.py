"""The host's allocator, set to keep the memory of a CPU program from one run to the next.

XLA's CPU client asks `malloc` for the intermediate values of a program at every run, in a thread of its own. glibc
takes blocks of that size from the kernel and returns them when they are freed, so every step has all its pages mapped
and cleared again, which is a fifth of the step of a small transformer. One heap that is never trimmed keeps them. It is
reserved in one piece, which costs addresses but no memory, and so can consist of huge pages.

Whoever has set glibc's allocator by its own variables, or runs with another one, is left alone.
"""

import ctypes
import mmap
import sys
from pathlib import Path

from .. import config
from .memory import host_memory

# From <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_HUGE_PAGE = 2 << 20
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_NEVER_OVERCOMMITS = "2"

_asked = _kept = False


def one_arena() -> None:
    """Has new threads share one heap. A heap of their own ends at 64 MiB, and a thread keeps the first it got."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_ARENA_MAX, 1)


def keep_memory() -> None:
    """Keeps what is freed, from now on: for when there is a next time, because before it makes programs load later."""
    global _asked, _kept
    if _asked:
        return
    _asked = True
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)  # what compiling has left is not for programs to keep
        _kept = bool(libc.mallopt(_M_MMAP_MAX, 0) and libc.mallopt(_M_TRIM_THRESHOLD, -1))
        _reserve(libc)


def release_memory() -> None:
    """Returns to the kernel what is kept and not in use."""
    libc = _glibc()
    if libc is not None and _kept:
        libc.malloc_trim(0)
        _reserve(libc)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux" or not config.keep_host_memory():
        return None
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return None
    libc.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_ssize_t], ctypes.c_void_p
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.malloc_trim.argtypes = [ctypes.c_size_t]
    return libc


def _reserve(libc: ctypes.CDLL) -> None:
    """Extends the heap by half of the machine's memory, which will be huge pages when it is touched."""
    try:
        if _OVERCOMMIT.read_text().strip() == _NEVER_OVERCOMMITS:
            return  # there, addresses count as memory
    except OSError:
        return
    size = host_memory() // 2
    end = libc.sbrk(0)
    block = libc.malloc(size)
    if not block:
        return  # a limit of the process
    if libc.sbrk(0) - end >= size - _HUGE_PAGE:  # and not from another allocator
        start = -(-block // _HUGE_PAGE) * _HUGE_PAGE
        libc.madvise(start, (block + size - start) // _HUGE_PAGE * _HUGE_PAGE, mmap.MADV_HUGEPAGE)
    libc.free(block)
