"""Reuse MLIR contexts: JAX would make a new one for each module, or for every ten, that it lowers.

Making a context, loading its dialects and destroying it is a third of the host time of a new program of a few
operations. No module owns a context, but a context keeps the types, names, lines and constants of all modules lowered
in it. So a context serves a number of small programs, and then another is made.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .. import patch_list
from ..names import jax as private

# Modules lowered in one context.
MOST = 32


class _Kept(threading.local):
    """A thread's own context: XLA loads dialects into it while it compiles, which is not made for several threads."""

    context: object = None
    left = 0
    is_used = False


_kept = _Kept()


@contextmanager
def kept() -> Iterator[None]:
    """Let modules that JAX lowers in this block share a context with earlier such blocks of this thread.

    Use it for modules that this thread compiles and drops before its next block.
    """
    before = _kept.is_used
    try:
        _kept.is_used = True
        yield
    finally:
        _kept.is_used = before


def _context() -> object:
    if not _kept.is_used:
        return private.context_of_jax()
    if not _kept.left:
        _kept.context, _kept.left = private.module_context(), MOST
    _kept.left -= 1
    return _kept.context


patch_list.module_context.put(_context)
