"""Reuse MLIR contexts: JAX would make a new one for each module, or for every ten, that it lowers.

To make one, to load what XLA reads a module with, and to end it is a third of what a new program of a few operations
costs its thread. No module owns a context: in it stay the types, names, lines and constants of all that were lowered
in it. So it is kept for some small programs, and then another is made.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .. import patch_list
from ..names import jax as private

# So many modules are lowered in one context.
MOST = 32


class _Kept(threading.local):
    """A thread's own context: XLA loads dialects into it while it compiles, which is not made for several threads."""

    context: Any = None
    left = 0
    is_used = False


_kept = _Kept()


@contextmanager
def kept() -> Iterator[None]:
    """What JAX lowers in this block, and in this thread, shares a context with what was lowered in such blocks before.

    For modules that this thread compiles and forgets before its next block.
    """
    before = _kept.is_used
    try:
        _kept.is_used = True
        yield
    finally:
        _kept.is_used = before


def _context() -> Any:
    if not _kept.is_used:
        return private.context_of_jax()
    if not _kept.left:
        _kept.context, _kept.left = private.module_context(), MOST
    _kept.left -= 1
    return _kept.context


patch_list.module_context.put(_context)
