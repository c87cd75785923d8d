"""Private names of JAX by which traced operations get a source line and names of our choice."""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from jax._src import source_info_util

from ...atomic import uncollected


class _Somewhere(source_info_util.SourceInfo):
    """Names and a source line of our choice; none inside JAX's own jitted functions.

    JAX traces such a function once and keeps the lines of its first caller, which would then appear at every call.
    Without lines XLA uses the line of the call. JAX sets an empty name stack while it traces one, which identifies it.
    """

    __slots__ = ()

    def replace(self, *, traceback: object = None, name_stack: Any = None) -> source_info_util.SourceInfo:
        inside = name_stack is not None and not name_stack.stack
        known = traceback_at(None) if inside else (traceback or self.traceback)
        return _Somewhere(known, self.name_stack if name_stack is None else name_stack)


@functools.lru_cache(1 << 14)
def traceback_at(line: tuple[str, int, str] | None) -> Any:
    """Return a traceback whose only frame is at `line` (file, number, function); without `line`, one without frames.

    JAX takes the lines of a program from the stack at the time of tracing, which is the sync. A traceback cannot be
    made, only taken. So a function compiled with this line takes one, in a thread whose other frames are all in
    Python's library, which JAX leaves out.
    """
    file, number, function = line or (threading.__file__, 1, "nowhere")
    if line is not None and not source_info_util.is_user_filename(file):
        source_info_util.register_inclusion(file)  # a library in Python's own folder is still a line of the program
    code = _take.__code__.replace(
        co_filename=file, co_firstlineno=max(1, number), co_name=function, co_qualname=function
    )
    take = FunctionType(code, {"get_traceback": source_info_util.Traceback.get_traceback})
    try:
        return _of_another_thread(take)
    except RuntimeError:
        return take()  # Python ends and starts no thread: what an exit handler compiles shows our lines too


@uncollected
def _of_another_thread(take: Callable[[], object]) -> object:
    # This thread waits and holds the engine's lock. A finalizer in the other thread may ask for the lock: both would
    # wait for ever.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(take).result()


_take: Any = lambda: get_traceback()  # type: ignore[name-defined]  # noqa: E731, F821


@contextmanager
def located(line: tuple[str, int, str] | None, names: Sequence[str]) -> Iterator[None]:
    """Give operations that JAX traces in this block `names` and `line` (file, number, function) as their origin.

    Inside another such block, names follow the outer ones, and without a line the outer block's line holds. JAX has
    public named scopes, but takes source lines only from the Python code that traces.
    """
    place = source_info_util._source_info_context
    before = place.context
    stack = before.name_stack
    for name in names:
        stack = stack.extend(name)
    inherits = line is None and isinstance(before, _Somewhere)
    place.context = _Somewhere(before.traceback if inherits else traceback_at(line), stack)
    try:
        yield
    finally:
        place.context = before


def line_of(info: source_info_util.SourceInfo) -> tuple[str, int, str] | None:
    """Return the source line (file, number, function) that a traced operation was given."""
    frame = source_info_util.user_frame(info.traceback)
    return None if frame is None else (frame.file_name, frame.start_line, frame.function_name)
