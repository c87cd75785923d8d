"""Which of the tools that settings ask for are on. Looked at when the package is imported and at each new program."""

from ...metrics import events
from ...record import live_counters, recorded_counts
from ..layouts import automatic
from ..memory import explanation
from ..values import checking, nan
from . import analysis, dumps, report_file, step_log, tracker

_TOOLS = (analysis, automatic, checking, dumps, nan, report_file, step_log, tracker)


def apply_settings() -> None:
    """Turn on what the environment asks for, and off what it does not ask for any more."""
    for tool in _TOOLS:
        tool.apply_settings()


def start() -> None:
    """Begin to count tensors; turn on what the environment asks for, now and whenever a program is made."""
    live_counters.begin()
    recorded_counts.begin()
    explanation.begin()
    apply_settings()
    events.before_new_program = apply_settings
