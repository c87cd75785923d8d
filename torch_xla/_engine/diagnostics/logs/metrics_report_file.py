"""`XLA_METRICS_FILE`: append the metrics report to a file at every step."""

import itertools
import sys

from ... import config
from ...metrics import events, report
from ...metrics.events import StepEnd
from ...processes import identity

_saved = itertools.count(1)


def save_report(file: str) -> None:
    """Append the report to `file`, or write it to `STDOUT` or `STDERR`. Each of several replicas has its own."""
    text = f"[MetricsData; step={next(_saved)}]\n{report.full_report()}\n"
    if file in ("STDOUT", "STDERR"):
        (sys.stdout if file == "STDOUT" else sys.stderr).write(text)
        return
    name = f"{file}.{identity.replica_index()}" if identity.replica_count() > 1 else file
    with open(name, "a") as opened:
        opened.write(text)


def _hear(event: object) -> None:
    if isinstance(event, StepEnd):
        save_report(_file)


_file = ""


def apply_settings() -> None:
    """Listen for steps if the settings name a file."""
    global _file
    _file = config.metrics_file()
    events.listen_if(bool(_file), _hear)
