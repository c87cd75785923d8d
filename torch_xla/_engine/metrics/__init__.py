"""Metrics: what happened, how often, and how long it took.

In: counts, samples and events from every room. Out: the text and the tuples of `torch_xla.debug.metrics`, and records
for whoever listens. `user_lines.py` finds the line of the user's program that each of them belongs to.

Doors: every module.
"""

from .counters import Counter as Counter
from .counters import count as count
from .counters import counter as counter
from .samples import Metric as Metric
from .samples import Unit as Unit
from .samples import metric as metric
from .samples import timed as timed
