"""Forbid the execution of recorded operations, to find where a program is not one graph."""

from ...metrics import events, user_lines
from ...metrics.events import Evaluation
from . import debug_log

_allowed = True


def allow(yes: bool) -> None:
    """Make every evaluation raise `RuntimeError` before it begins, or let them run again."""
    global _allowed
    if yes != _allowed:
        _allowed = yes
        (events.unguard if yes else events.guard)(_refuse)


def is_allowed() -> bool:
    """Return whether recorded operations may run."""
    return _allowed


def _refuse(event: object) -> None:
    if isinstance(event, Evaluation):
        debug_log.tell_unexpected(event.cause)
        raise RuntimeError(
            f"{user_lines.text(event.frames[0])} makes recorded operations run, which _set_allow_execution(False) "
            f"forbids. "
            f"Look at values after the part that must be one graph, or use `torch.where` instead of `if`."
        )
