"""Tune the host's allocator so that CPU programs keep their memory from one run to the next.

XLA's CPU client asks `malloc` for the intermediate values of a program at every run, in a thread of its own. glibc
takes blocks of that size from the kernel and returns them when they are freed, so every step has all its pages mapped
and cleared again, which is a fifth of the step of a small transformer. A heap whose top is not returned keeps them.
What programs need of it is reserved in one piece, which costs addresses but no memory; so it can be huge pages.

What is kept is bounded by what the programs of the last seconds need. A thread looks after it once a second while
programs run, and returns what is beyond; what lies at the heap's top goes back at once. A large program is looked after
whenever it starts. The bound is what one program needs, until it is seen that programs use more of what they free: what
was returned is there again soon. When the machine or its control group runs short, everything is returned. When
programs rest, so it is too, and the allocator is left as glibc has it after large blocks were freed; the thread sleeps
until there is another program.

A compilation leaves thousands of holes of all sizes, and glibc walks through those of about a size whenever a program
allocates or frees a block of a few pages: a quarter of the step of a small model. So the thread takes the holes, which
gives their pages back, and whoever compiles next gets them again.

Nothing is set before the first device is used. Whoever has set glibc's allocator by its own variables, or runs with
another one, is left alone. So is a process that has a limit near what would be kept.
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
from . import device_memory

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
# Aligned blocks do not fit into the holes that their like has left, until neighbours of these are free too, and between
# them lie scraps, which each thread keeps for itself. So a heap takes several times what is in use before it grows no
# more. Of the holes that came first many are never used again: their pages are returned once, and stay away.
_HOLES = 4
# Memory beyond the bound that is not worth a look through the heap.
_NOT_WORTH = 256 << 20
# A program that needs so many bytes takes far longer than such a look.
_LARGE = 128 << 20
# Memory that is there again within so many seconds, so often, is in use, and the bound becomes twice as much.
# It becomes half as much when nothing was returned for so long.
_SOON, _OFTEN, _SETTLED = 5.0, 4, 300.0
# Under a limit of the process (`ulimit -v`, `-d`), where holes count as memory does, memory is kept if there is so many
# times room for it.
_ROOM = 4
_LIMITS = Path("/proc/self/limits")

# Holes of these sizes are taken: smaller ones lie sorted, larger ones may be what programs have left.
_HOLE_SIZES = tuple(1 << power for power in range(18, 12, -1))
# So many blocks side by side are of no hole of a compilation's: of what a program has left, or of the heap's top.
_ROW = 6
_MOST_HOLES = 100_000

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
        self.times = 1  # as many times this may be kept, up to _HOLES
        self.returned = 0.0  # when something was returned, or `times` made smaller
        self.often = 0  # how often something was returned soon after the last time
        self.started = 0.0  # when the last was started
        self.gap = 0.0  # seconds between the last two
        self.other = 0  # bytes in memory that nobody allocated, when nothing was kept
        self.allowed = 0  # bytes in memory that need no look at what of them is free
        self.compiling: set[object] = set()  # whoever does
        self.compiled = 0.0  # when somebody had, and left holes that nobody has taken; 0: there are none
        self.holes: list[int] = []  # blocks that fill them
        self.filled = 0  # bytes of these
        self.wakes = threading.Event()
        self.watcher: threading.Thread | None = None


_use = _Use()
_lock = lock()


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
    elif needed >= _LARGE and (libc := _glibc()) is not None and _resident() > use.allowed:
        with _lock:
            _return_excess(libc)


@contextmanager
def compiling() -> Iterator[None]:
    """What is compiled meanwhile goes into the holes that other compilations have left."""
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
            # Whoever is interrupted here loses blocks, and frees none twice.
            blocks, _use.holes = _use.holes, []
            _use.other, _use.filled = _use.other + _use.filled, 0
            run_through(map(libc.free, blocks))


def _fill_holes(libc: ctypes.CDLL) -> None:
    """Takes the holes that compilations have left, and gives their pages back."""
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
    """The most bytes that may be kept for programs that need so many."""
    return _HOLES * _at_once(needed)


def _room() -> int:
    """The bytes that the limits of this process leave it."""
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
    """Returns everything, and leaves the allocator to others."""
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
    if device_memory.available() < _SHORT * device_memory.host_memory():
        _use.other = _outside_when_trimmed(libc, 0)
    else:
        _return_excess(libc)


def _return_excess(libc: ctypes.CDLL) -> None:
    """Returns what is beyond the bound, and makes that larger or smaller by how soon there was too much."""
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
    """What stays outside (`_outside`) when all that is free was returned, but for `top` bytes at the end of the heap.

    What others free while it is returned is free too, and no part of what cannot be returned.
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
    """The bytes of this process in memory that are no file's and that `malloc` has not given out."""
    if not hasattr(libc, "mallinfo2"):
        return 0  # before glibc 2.33
    libc.mallinfo2.restype = _Mallinfo
    found = libc.mallinfo2()
    return _resident() - int(found.uordblks) - int(found.hblkhd)


def _resident() -> int:
    """The bytes of this process in memory that are no file's."""
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
