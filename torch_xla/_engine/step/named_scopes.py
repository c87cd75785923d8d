"""Named scopes: what is recorded inside one carries its name into metadata and profiles.

Opening and closing a scope leaves a mark on the tape of this thread's device; recording itself does not look at them.
"""

import threading

from ..tensor.device import current_index, device_at

_open = threading.local()


def open_scope(name: str) -> None:
    """Begins the scope `name` inside those this thread has open."""
    _mark((*open_scopes(), name))


def close_scope() -> None:
    """Ends the innermost scope of this thread."""
    _mark(open_scopes()[:-1])


def open_scopes() -> tuple[str, ...]:
    """The scopes this thread has open, outermost first."""
    scopes: tuple[str, ...] = getattr(_open, "scopes", ())
    return scopes


def _mark(scopes: tuple[str, ...]) -> None:
    _open.scopes = scopes
    tape = device_at(current_index()).tape
    position = len(tape.code)
    if tape.scopes and tape.scopes[-1][0] == position:
        tape.scopes.pop()
    if scopes or tape.scopes:
        tape.scopes.append((position, scopes))
