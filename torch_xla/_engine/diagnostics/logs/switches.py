"""Switch on the tools that settings ask for, at import and at each new program."""

from ...metrics.observers import observers
from ...planning.sharding_search import automatic
from ...step import pending_op_counts
from ...tensor import live_counters
from ..fleet import goodput, stragglers
from ..memory import largest_in_errors
from ..values import bad_value_checks, first_nan
from . import debug_log, graph_dumps, host_read_file, metrics_report_file, step_log

_TOOLS = (
    debug_log,
    automatic,
    bad_value_checks,
    graph_dumps,
    first_nan,
    metrics_report_file,
    step_log,
    host_read_file,
    goodput,
)


def apply_settings() -> None:
    """Turn on what the environment asks for, and off what it does not ask for any more."""
    for tool in _TOOLS:
        tool.apply_settings()


def start() -> None:
    """Begin to count tensors; turn on what the environment asks for, now and whenever a program is made."""
    live_counters.begin()
    pending_op_counts.begin()
    largest_in_errors.begin()
    stragglers.begin()
    apply_settings()
    observers.register("before_new_program", apply_settings)
