"""Metrics: what happened, how often, and how long it took.

In: counts and samples from every room above. Out: the text and the tuples of `torch_xla.debug.metrics`.

Doors: every module.
"""

from .counters import Counter as Counter
from .counters import count as count
from .counters import counter as counter
from .samples import Metric as Metric
from .samples import Unit as Unit
from .samples import metric as metric
from .samples import timed as timed
