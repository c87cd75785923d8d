"""Whether SPMD mode is on: all devices behind one ordinal, as a virtual device."""

from collections.abc import Iterator
from contextlib import contextmanager

from .. import config

_asked = False
_is_automatic = False


def is_on() -> bool:
    """Return whether `xla:0` means all devices of the program."""
    return _asked or config.use_spmd() or config.auto_spmd()


def is_automatic() -> bool:
    """Return whether layouts are searched for."""
    return _is_automatic or config.auto_spmd()


def turn_on_automatic() -> None:
    """Search for layouts from now on."""
    global _is_automatic
    _is_automatic = True


def turn_on() -> None:
    """Make `xla:0` mean all devices from now on."""
    global _asked
    _asked = True
    config.set_use_spmd()


@contextmanager
def turned_on() -> Iterator[None]:
    """Let `xla:0` mean all devices within a `with` block."""
    global _asked
    before = _asked
    try:
        _asked = True
        yield
    finally:
        _asked = before
