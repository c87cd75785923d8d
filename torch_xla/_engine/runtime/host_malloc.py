"""Tune the host's allocator so that CPU programs keep their memory from one run to the next.

XLA's CPU client allocates the intermediate values of a program by `malloc` at every run, in a separate thread. glibc
maps blocks of that size when they are allocated and unmaps them when they are freed. So the kernel maps and clears all
pages in every step, which takes a fifth of the step of a small transformer. A heap whose top is not returned keeps the
pages. The memory that programs need is reserved in one piece, which costs addresses but no memory, so that it can use
huge pages.

The kept memory is bounded by the need of the programs of the last seconds. A thread checks it once a second while
programs run, and returns the memory above the bound; memory at the heap's top is returned at once. For a large program
it is checked at every start. The bound is the need of one program, until the thread sees that programs reuse more of
the memory that they free: returned memory is then soon allocated again. When the machine or its control group runs
short, all memory is returned. When no program runs, all memory is returned too, the allocator is reset to the state
that glibc reaches after large blocks were freed, and the thread sleeps until the next program.

A compilation leaves thousands of holes of all sizes. glibc searches the holes of a similar size whenever a program
allocates or frees a block of a few pages, which takes a quarter of the step of a small model. So the thread allocates
the holes, which returns their pages, and frees them again for the next compilation.

Nothing is set before the first device is used. The module does nothing if glibc's allocator is configured by its own
variables, if the process runs with another allocator, or if the process has a limit near the memory to keep.
"""

import ctypes
import functools
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import config
from ..atomic import lock, run_through
from .device_memory import available as available_memory
from .device_memory import host_memory

# From <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -3, -4, -8
_HUGE_PAGE = 2 << 20
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_NEVER_OVERCOMMITS = "2"
# glibc's values after it has freed blocks of any size, and its default for the top.
_MMAPS, _LARGEST_THRESHOLD, _TOP_PAD = 65536, 32 << 20, 128 << 10
_LARGEST_INT = (1 << 31) - 1

# The bytes that waiting programs, without the largest, allocate.
_BESIDES = 64 << 20
# An aligned block does not fit into the hole of an earlier one until neighbouring blocks are free too, and small
# scraps,
# which each thread caches, are between them. So a heap grows to several times the memory in use before it stops
# growing.
# Many of the first holes are never used again: their pages are returned once, and are not mapped again.
_HOLES = 4
# Memory above the bound that does not justify a search through the heap.
_NOT_WORTH = 256 << 20
# A program that needs this number of bytes takes far longer than such a search.
_LARGE = 128 << 20
# If returned memory is allocated again within _SOON seconds, _OFTEN times, it is in use, and the bound doubles.
# The bound halves when no memory was returned for _SETTLED seconds.
_SOON, _OFTEN, _SETTLED = 5.0, 4, 300.0
# A limit of the process (`ulimit -v`, `-d`) counts holes as memory. Memory is kept only if the limit is this number of
# times larger.
_ROOM = 4
_LIMITS = Path("/proc/self/limits")

# The sizes of holes to allocate: smaller holes are in sorted lists, larger ones may belong to programs.
_HOLE_SIZES = tuple(1 << power for power in range(18, 12, -1))
# This number of adjacent blocks is not in a hole of a compilation: it is in a hole of a program, or at the heap's top.
_ROW = 6
_MOST_HOLES = 100_000

# Programs rest when none was started for _REST seconds, and for _GAPS times the time between the last two.
_REST, _GAPS = 2.0, 3.0
_LOOKS_EVERY = 1.0
# A machine or control group is short of memory if less than this part of it is free.
_SHORT = 0.1


class _Use:
    """The memory that programs need, as the threads that start them report it to the thread that trims the heap."""

    def __init__(self) -> None:
        self.needed = 0  # bytes, the most of one program lately; 0: programs rest
        self.latest = 0  # bytes, the most of one program since the last look
        self.times = 1  # as many times this may be kept, up to _HOLES
        self.returned = 0.0  # when something was returned, or `times` made smaller
        self.often = 0  # how often something was returned soon after the last time
        self.started = 0.0  # when the last was started
        self.gap = 0.0  # seconds between the last two
        self.other = 0  # bytes that glibc reported outside of blocks when nothing was kept
        self.allowed = 0  # bytes in memory that need no look at what of them is free
        self.compiling: set[object] = set()  # the threads that compile
        self.compiled = 0.0  # the time of the last compilation whose holes are still free; 0 if there is none
        self.holes: list[int] = []  # blocks that fill them
        self.filled = 0  # bytes of these
        self.wakes = threading.Event()
        self.watcher: threading.Thread | None = None


_use = _Use()
_lock = lock()


def prepare() -> None:
    """Let threads share one heap from now on: one of their own ends at 64 MiB, and a thread keeps the first it got.

    For the first use of a device: the client has yet to start the threads that allocate for programs, and neither has
    JAX started one, whose heap the next thread would inherit.
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_ARENA_MAX, 1)


def keep_memory(needed: int) -> None:
    """Keep the memory that a repeated program frees; the program allocates `needed` bytes."""
    use = _use
    now = time.monotonic()
    use.gap, use.started = now - use.started, now
    use.latest = max(use.latest, needed)
    if needed > use.needed:
        _keep(needed)
    elif needed >= _LARGE and (libc := _glibc()) is not None and _resident() > use.allowed:
        with _lock:
            _return_excess(libc)


@contextmanager
def compiling() -> Iterator[None]:
    """Let compilations in a block allocate from the holes of earlier compilations."""
    token = object()
    try:
        _use.compiling.add(token)
        _free_holes()
        yield
    finally:
        _use.compiling.discard(token)
        _use.compiled = time.monotonic()


def _free_holes() -> None:
    libc = _glibc()
    if libc is not None and _use.holes:
        with _lock:
            # An interrupt here loses blocks, but frees none twice.
            blocks, _use.holes = _use.holes, []
            _use.other, _use.filled = _use.other + _use.filled, 0
            run_through(map(libc.free, blocks))


def _fill_holes(libc: ctypes.CDLL) -> None:
    """Allocate the holes that compilations have left, and return their pages."""
    _use.compiled = 0.0
    for size in _HOLE_SIZES:
        row: list[int] = []
        while len(row) < _ROW and len(_use.holes) < _MOST_HOLES and (block := libc.malloc(size)):
            if row and abs(block - row[-1]) >= 2 * size:
                for taken in row:
                    start, end = -(-taken // mmap.PAGESIZE), (taken + size) // mmap.PAGESIZE
                    libc.madvise(start * mmap.PAGESIZE, (end - start) * mmap.PAGESIZE, mmap.MADV_DONTNEED)
                _use.holes += row
                _use.other, _use.filled = _use.other - size * len(row), _use.filled + size * len(row)
                row = []
            row.append(block)
        run_through(map(libc.free, row))


def release_memory() -> None:
    """Return the kept memory that is not in use to the kernel."""
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
        if _ROOM * _bound(needed) > _room():
            if _use.needed:
                _use.needed = 0
                _rest(libc)
            return
        if not _use.needed:
            _use.other = _outside_when_trimmed(libc, 0)  # what compiling has left is not for programs to keep
            _use.gap, _use.times, _use.often = 0.0, 1, 0
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
    """Return the largest number of bytes to keep for programs that need `needed` bytes."""
    return _HOLES * _at_once(needed)


def _room() -> int:
    """Return the bytes that the limits of this process leave it."""
    size, _, _, _, _, data, _ = (int(pages) * mmap.PAGESIZE for pages in Path("/proc/self/statm").read_text().split())
    room = sys.maxsize
    for line in _LIMITS.read_text().splitlines():
        for name, used in (("Max address space", size), ("Max data size", data)):
            if line.startswith(name) and (limit := line.removeprefix(name).split()[0]).isdigit():
                room = min(room, int(limit) - used)
    return room


def _set_bound(libc: ctypes.CDLL, needed: int) -> None:
    bound = _bound(needed)
    # They are ints; with a threshold of -1 the top is never returned at once, and the thread has to do it.
    libc.mallopt(_M_TRIM_THRESHOLD, 2 * bound if 2 * bound <= _LARGEST_INT else -1)
    libc.mallopt(_M_TOP_PAD, min(_at_once(needed), _LARGEST_INT))
    libc.mallopt(_M_MMAP_MAX, 0)


def _rest(libc: ctypes.CDLL) -> None:
    """Return all memory, and leave the allocator to others."""
    if _use.holes:
        _use.compiled = time.monotonic()  # they are there again when programs run again
    _free_holes()
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
    if _use.compiled and not _use.compiling and time.monotonic() - _use.compiled > _REST:
        _fill_holes(libc)
    if available_memory() < _SHORT * host_memory():
        _use.other = _outside_when_trimmed(libc, 0)
    else:
        _return_excess(libc)


def _return_excess(libc: ctypes.CDLL) -> None:
    """Return the memory above the bound, and adapt the bound to how soon it was exceeded."""
    use, now = _use, time.monotonic()
    since = now - use.returned
    most = use.times * _at_once(use.needed) + _NOT_WORTH
    kept = _outside(libc) - use.other
    if kept > most:
        use.other, use.returned = _outside_when_trimmed(libc, _at_once(use.needed)), now
        kept = 0
        use.often = use.often + 1 if since < _SOON else 0
        if use.often == _OFTEN:
            use.times, use.often = min(2 * use.times, _HOLES), 0
    elif since > _SETTLED and use.times > 1:
        use.times, use.returned = use.times // 2, now
    # `malloc` counts what is free by a walk through all of it, under its lock: until the process has grown by what is
    # left of the bound, only the thread that looks once a second needs to know.
    use.allowed = _resident() + most - kept


def _outside_when_trimmed(libc: ctypes.CDLL, top: int) -> int:
    """Return all free memory except `top` bytes at the end of the heap, and return the result of `_outside` then.

    Repeat while other threads free memory, so that this memory does not count as memory that cannot be returned.
    """
    libc.malloc_trim(top)
    left = _outside(libc)
    while left > _use.other + _NOT_WORTH:
        libc.malloc_trim(top)
        before, left = left, _outside(libc)
        if left > before - _NOT_WORTH:
            break
    return left


def _after_fork() -> None:
    # The thread is not here, and neither are programs.
    global _lock
    _lock = lock()
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
    """Return the bytes of this process in memory that are no file's and that `malloc` has not given out."""
    if not hasattr(libc, "mallinfo2"):
        return 0  # before glibc 2.33
    libc.mallinfo2.restype = _Mallinfo
    found = libc.mallinfo2()
    return _resident() - int(found.uordblks) - int(found.hblkhd)


def _resident() -> int:
    """Return the bytes of this process in memory that are no file's."""
    with open("/proc/self/statm") as statm:
        words = statm.read().split()
    return (int(words[1]) - int(words[2])) * mmap.PAGESIZE


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
    """Extend the heap by `size` bytes, which become huge pages when they are used."""
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
