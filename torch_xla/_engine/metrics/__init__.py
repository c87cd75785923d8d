"""Metrics: what happened, how often, and how long it took.

In: counts, samples and events from every room. Out: the text and the tuples of `torch_xla.debug.metrics`, and records
for listeners. `user_lines.py` finds the line of the user's program that each of them belongs to.

Doors: accounts, counters, events, human_units, observers, report, samples, user_lines.
"""

from .accounts import CHECKPOINT, RECOVERY
from .accounts import Spent as SecondsSpent
from .accounts import spent as seconds_spent
from .counters import Counter as Counter
from .counters import clear as clear_counters
from .counters import count as count
from .counters import counter as counter
from .counters import names as counter_names
from .counters import value_of as counter_value
from .human_units import duration as duration_text
from .human_units import size as size_text
from .renamed_counters import current as current_counter_name
from .report import SHORT_COUNTERS, SHORT_METRICS, fallback_names, full_report, short_report
from .report_comparison import data_points, parse_report
from .report_comparison import differences as report_differences
from .samples import Unit as Unit
from .samples import clear as clear_metrics
from .samples import data_of as metric_data
from .samples import metric as metric
from .samples import sampled as sampled_metrics
from .samples import timed as timed
from .throughput import RateTracker
