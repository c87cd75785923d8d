"""The host's allocator, set to keep the memory of CPU programs from one run to the next: as much as they use, not more.

XLA's CPU client asks `malloc` for the intermediate values of a program at every run, in a thread of its own. glibc
takes blocks of that size from the kernel and returns them when they are freed, so every step has all its pages mapped
and cleared again, which is a fifth of the step of a small transformer. A heap whose top is not returned keeps them.
What programs need of it is reserved in one piece, which costs addresses but no memory; so it can be huge pages.

What is kept is bounded by what the programs of the last seconds need. A thread looks after it once a second while
programs run, and returns what is beyond; what lies at the heap's top goes back at once. When the machine or its control
group runs short, everything is returned. When programs rest, so it is too, and the allocator is left as glibc has it
after large blocks were freed; the thread sleeps until there is another program.

Nothing is set before the first device is used. Whoever has set glibc's allocator by its own variables, or runs with
another one, is left alone.
"""

import ctypes
import functools
import mmap
import os
import sys
import threading
import time
from pathlib import Path

from .. import config
from . import memory

# From <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -3, -4, -8
_HUGE_PAGE = 2 << 20
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_NEVER_OVERCOMMITS = "2"
# What glibc arrives at by itself when blocks of any size were freed, and its default for the top.
_MMAPS, _LARGEST_THRESHOLD, _TOP_PAD = 65536, 32 << 20, 128 << 10
_LARGEST_INT = (1 << 31) - 1

# Programs that wait for each other allocate so much besides the largest.
_BESIDES = 64 << 20
# Aligned blocks do not fit into the holes that their like has left, until neighbours of these are free too. So a heap
# takes several times what is in use before it grows no more.
_HOLES = 4
# Memory beyond the bound that is not worth a look through the heap.
_NOT_WORTH = 256 << 20
# Programs rest when none was started for so many seconds, and for so many times the time between the last two.
_REST, _GAPS = 2.0, 3.0
_LOOKS_EVERY = 1.0
# Short is a machine or control group of which less than this part is left.
_SHORT = 0.1


class _Use:
    """What programs need, as the thread that looks after the heap is told by those that start them."""

    def __init__(self) -> None:
        self.needed = 0  # bytes, the most of one program lately; 0: programs rest
        self.latest = 0  # bytes, the most of one program since the last look
        self.started = 0.0  # when the last was started
        self.gap = 0.0  # seconds between the last two
        self.other = 0  # bytes in memory that nobody allocated, when nothing was kept
        self.wakes = threading.Event()
        self.watcher: threading.Thread | None = None


_use = _Use()
_lock = threading.RLock()


def prepare() -> None:
    """Has threads from now on share one heap: one of their own ends at 64 MiB, and a thread keeps the first it got.

    For the first use of a device: the client has yet to start the threads that allocate for programs, and neither has
    JAX started one, whose heap the next thread would inherit.
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_ARENA_MAX, 1)


def keep_memory(needed: int) -> None:
    """Keeps what is freed by a program that allocates `needed` bytes, while it comes again and again."""
    use = _use
    now = time.monotonic()
    use.gap, use.started = now - use.started, now
    use.latest = max(use.latest, needed)
    if needed > use.needed:
        _keep(needed)


def release_memory() -> None:
    """Returns to the kernel what is kept and not in use."""
    libc = _glibc()
    if libc is not None and _use.needed:
        libc.malloc_trim(0)
        _reserve(libc, _bound(_use.needed))


def _keep(needed: int) -> None:
    libc = _glibc()
    if libc is None:
        _use.needed = sys.maxsize  # nothing to do here, and nothing to ask again
        return
    with _lock:
        if not _use.needed:
            libc.malloc_trim(0)  # what compiling has left is not for programs to keep
            _use.gap = 0.0
            _use.other = _outside(libc)
        _use.needed = needed
        _set_bound(libc, needed)
        _reserve(libc, _bound(needed))
        if _use.watcher is None or not _use.watcher.is_alive():
            _use.watcher = threading.Thread(target=_look_after, name="torch_xla host memory", daemon=True)
            _use.watcher.start()
        _use.wakes.set()


def _at_once(needed: int) -> int:
    return needed + _BESIDES


def _bound(needed: int) -> int:
    """The bytes that may be kept for programs that need so many."""
    return _HOLES * _at_once(needed)


def _set_bound(libc: ctypes.CDLL, needed: int) -> None:
    bound = _bound(needed)
    # They are ints; with a threshold of -1 the top is never returned at once, and the thread has to do it.
    libc.mallopt(_M_TRIM_THRESHOLD, 2 * bound if 2 * bound <= _LARGEST_INT else -1)
    libc.mallopt(_M_TOP_PAD, min(_at_once(needed), _LARGEST_INT))
    libc.mallopt(_M_MMAP_MAX, 0)


def _rest(libc: ctypes.CDLL) -> None:
    """Returns everything, and leaves the allocator to others."""
    libc.mallopt(_M_TOP_PAD, _TOP_PAD)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
    libc.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGEST_THRESHOLD)
    libc.mallopt(_M_MMAP_MAX, _MMAPS)
    libc.malloc_trim(0)


def _look_after() -> None:
    libc = _glibc()
    while libc is not None:
        _use.wakes.wait()
        time.sleep(_LOOKS_EVERY)
        with _lock:
            _look(libc)


def _look(libc: ctypes.CDLL) -> None:
    if time.monotonic() - _use.started > _REST + _GAPS * _use.gap:
        _use.wakes.clear()
        _use.needed = _use.latest = 0
        _rest(libc)
        return
    if _use.latest and _use.latest < _use.needed // 2:
        _use.needed = _use.latest
        _set_bound(libc, _use.needed)
    _use.latest = 0
    is_short = memory.available() < _SHORT * memory.host_memory()
    if is_short or _outside(libc) - _use.other > _bound(_use.needed) + _NOT_WORTH:
        libc.malloc_trim(0 if is_short else _at_once(_use.needed))
        _use.other = _outside(libc)


def _after_fork() -> None:
    # The thread is not here, and neither are programs.
    global _lock
    _lock = threading.RLock()
    _use.wakes = threading.Event()
    _use.watcher = None
    libc = _glibc()
    if _use.needed and libc is not None:
        _use.needed = 0
        _rest(libc)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _outside(libc: ctypes.CDLL) -> int:
    """The bytes of this process in memory that are no file's and that `malloc` has not given out."""
    if not hasattr(libc, "mallinfo2"):
        return 0  # before glibc 2.33
    libc.mallinfo2.restype = _Mallinfo
    found = libc.mallinfo2()
    words = Path("/proc/self/statm").read_text().split()
    return (int(words[1]) - int(words[2])) * mmap.PAGESIZE - int(found.uordblks) - int(found.hblkhd)


def _glibc() -> ctypes.CDLL | None:
    return _loaded() if sys.platform == "linux" and config.keep_host_memory() else None


@functools.cache
def _loaded() -> ctypes.CDLL | None:
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


def _reserve(libc: ctypes.CDLL, size: int) -> None:
    """Extends the heap by `size` bytes, which will be huge pages when they are touched."""
    try:
        if _OVERCOMMIT.read_text().strip() == _NEVER_OVERCOMMITS:
            return  # there, addresses count as memory
    except OSError:
        return
    block = libc.malloc(size)
    if not block:
        return  # a limit of the process
    if block + size <= libc.sbrk(0):  # from the heap, and not from another allocator
        start = -(-block // _HUGE_PAGE) * _HUGE_PAGE
        libc.madvise(start, (block + size - start) // _HUGE_PAGE * _HUGE_PAGE, mmap.MADV_HUGEPAGE)
    libc.free(block)
