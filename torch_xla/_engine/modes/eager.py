"""Eager mode: each operation runs when it is called, by a program of its own that is compiled once."""

from collections.abc import Callable


def suspended() -> Callable[[], None] | None:
    """Records again, until what this returns is called; `None` if eager mode is off."""
    return None
