"""Old names of functions: the first use warns, and names the new function."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def deprecated(module: object, new: F, old_name: str | None = None, extra_msg: str | None = None) -> F:
    """Return `new` under the name `old_name` of `module`: it warns once (`DeprecationWarning`) and calls `new`.

    >>> import warnings, torch_xla
    >>> from torch_xla.experimental.deprecation import deprecated
    >>> old_sync = deprecated(torch_xla, torch_xla.sync, "old_sync")
    >>> with warnings.catch_warnings(record=True) as warned:
    ...     warnings.simplefilter("always")
    ...     old_sync()
    >>> str(warned[0].message)
    'torch_xla.old_sync is deprecated. Use torch_xla.sync instead.'
    """
    owner = getattr(module, "__name__", str(module))
    target = f"{new.__module__}.{new.__name__}"
    old = f"{owner}.{old_name or new.__name__}"
    return _warning(new, f"{old} is deprecated. Use {target} instead.{f' {extra_msg}' if extra_msg else ''}")


def mark_deprecated(new: F, extra_msg: str | None = None) -> F:
    """Make a function warn once that it will be removed. This is a decorator."""
    more = f" {extra_msg}" if extra_msg else ""
    return _warning(new, f"{new.__module__}.{new.__name__} is deprecated.{more}")


def _warning(new: F, message: str) -> F:
    is_first = True

    @functools.wraps(new)
    def call(*args: object, **kwargs: object) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        return new(*args, **kwargs)

    return call  # type: ignore[return-value]


def register_deprecated(module: object, new: F) -> None:
    """Make `new` a deprecated name of `module`."""
    setattr(module, new.__name__, deprecated(module, new))
