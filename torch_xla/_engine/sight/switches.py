"""Which of the tools that settings ask for are on. Looked at when the package is imported and at each new program."""

from ..metrics import events
from ..tensor import census
from . import analysis, dumps, nan, saving, step_log, tracker

_TOOLS = (analysis, dumps, nan, saving, step_log, tracker)


def settle() -> None:
    """Turns on what the environment asks for, and off what it does not ask for any more."""
    for tool in _TOOLS:
        tool.settle()


def start() -> None:
    """Begins to count tensors; turns on what the environment asks for, now and whenever a program is made."""
    census.begin()
    settle()
    events.before_new_program = settle
