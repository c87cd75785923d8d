"""Show no warnings of some functions or blocks, whatever other threads do meanwhile.

`warnings.catch_warnings` replaces the filters of the whole process and puts the earlier ones back. If two threads leave
such blocks in another order than they entered them, the filters of one block stay in force for good. It also has Python
forget which warnings it has shown.

A filter of this module stays in the list for good. It holds for a warning only if the function is on the stack of the
thread that warns. So nothing has to be put back, and no interrupt can prevent it. The filter of a block applies to all
threads until the block ends. A `catch_warnings` that ends later can put it back, but it applies no more.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from itertools import takewhile
from types import CodeType
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Unheard(type):
    """The category of a filter: its subclasses are those of `heard_not`, while the filter applies."""

    heard_not: type[Warning]

    def __subclasscheck__(cls, category: type) -> bool:
        return issubclass(category, cls.heard_not) and cls.applies()

    def applies(cls) -> bool:
        raise NotImplementedError


class _InBlock(_Unheard):
    is_open = True

    def applies(cls) -> bool:
        return cls.is_open


class _OnTheStack(_Unheard):
    def applies(cls) -> bool:
        frame = sys._getframe(1)
        while frame is not None and not (frame.f_code is _CODE and frame.f_locals["entry"][2] is cls):
            frame = frame.f_back  # type: ignore[assignment]
        return frame is not None


def quiet(category: type[Warning] = Warning, message: str = "") -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate a function so that its warnings of a category, and with a message that begins so, are not shown.

    Each call of `quiet` makes a filter that stays, so call it once for a module. Its result decorates many functions.
    """
    during = _OnTheStack("During", (Warning,), {"heard_not": category})
    entry = _ignore(during, message)

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(function)
        def quietly(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            _put_in_front(entry)
            return function(*args, **kwargs)

        return quietly

    return decorate


@contextmanager
def quiet_block(category: type[Warning] = Warning, message: str = "") -> Iterator[None]:
    """Show no warnings of a category, and with a message that begins so, in any thread until the block ends."""
    during = _InBlock("During", (Warning,), {"heard_not": category})
    entry = _ignore(during, message)
    try:
        _put_in_front(entry)
        yield
    finally:
        during.is_open = False
        with suppress(ValueError):
            warnings.filters.remove(entry)  # type: ignore[attr-defined]


def _ignore(category: _Unheard, message: str) -> tuple[object, ...]:
    return ("ignore", re.compile(message) if message else None, category, None, 0)


def _put_in_front(entry: tuple[Any, ...]) -> None:
    """Put a filter before those of other origin, which may demand that its warnings be shown."""
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    if any(each is entry for each in takewhile(lambda each: isinstance(each[2], _Unheard), filters)):
        return
    with suppress(ValueError):
        filters.remove(entry)
    filters.insert(0, entry)


_CODE: CodeType = quiet()(quiet).__code__  # of each function that is decorated
