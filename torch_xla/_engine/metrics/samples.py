"""Metrics with samples: a running total, and the latest samples with their times."""

import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType

from ..config import metrics_samples


class Unit(Enum):
    """Kind of a metric's values, which decides how the report prints them."""

    NANOSECONDS = auto()
    BYTES = auto()
    SCALAR = auto()


@dataclass(frozen=True, slots=True)
class Data:
    """A metric as it was at one moment. `samples` are pairs (seconds since the epoch, value), oldest first."""

    total_samples: int
    accumulator: float
    samples: tuple[tuple[float, float], ...]


class Metric:
    """A named series of values. Of the values themselves only the latest are kept (`XLA_METRICS_SAMPLES`).

    Adding takes no lock, as with counters; statistics are computed when they are read. The samples are in one block of
    memory: the oldest of a thousand small objects would have left the processor's cache when it is replaced.
    """

    __slots__ = ("_accumulator", "_latest", "_total_samples", "name", "unit")
    _total_samples: int
    _accumulator: float
    _latest: "array[float]"

    def __init__(self, name: str, unit: Unit) -> None:
        self.name = name
        self.unit = unit
        self.clear()

    def add(self, value: float) -> None:
        """Add one sample, taken now."""
        now = time.time()
        total = self._total_samples
        self._total_samples = total + 1  # there is no call between the two, so each thread gets a place of its own
        self._accumulator += value
        latest = self._latest
        place = 2 * total % len(latest)
        latest[place] = now
        latest[place + 1] = value

    def data(self) -> Data:
        """Return what was sampled so far."""
        total, accumulator, latest = self._total_samples, self._accumulator, list(self._latest)
        pairs = list(zip(latest[::2], latest[1::2], strict=True))
        oldest = total % len(pairs)
        # One that another thread is just adding has no time yet, or is newer than the count says.
        known = [pair for pair in pairs[oldest:] + pairs[:oldest] if pair[0]]
        return Data(total, accumulator, tuple(sorted(known, key=lambda pair: pair[0])))

    def clear(self) -> None:
        """Forget every sample; the object stays valid, since other rooms keep it."""
        self._total_samples = 0
        self._accumulator = 0.0
        self._latest = array("d", bytes(16 * metrics_samples()))  # time and value of each, in a ring


def add_each(samples: Iterable[tuple[Metric, float]]) -> None:
    """Add one sample to each metric, all taken now."""
    now = time.time()
    for metric, value in samples:
        total = metric._total_samples
        metric._total_samples = total + 1  # as in `Metric.add`
        metric._accumulator += value
        latest = metric._latest
        place = 2 * total % len(latest)
        latest[place] = now
        latest[place + 1] = value


class Timed:
    """Adds the time spent in a `with` block to a metric, also when the block raises."""

    __slots__ = ("_metric", "_start")

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def __enter__(self) -> None:
        self._start = time.perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._metric.add(time.perf_counter_ns() - self._start)


_metrics: dict[str, Metric] = {}

# Functions that return samples not taken yet: names with their current values. The second function of a pair is called
# when the samples are cleared.
coming: list[tuple[Callable[[], dict[str, float]], Callable[[], None]]] = []


def _with_coming(name: str, data: Data) -> Data:
    values = [late[name] for late_samples, _ in coming if name in (late := late_samples())]
    if not values:
        return data
    taken = tuple((time.time(), value) for value in values)
    return Data(data.total_samples + len(values), data.accumulator + sum(values), data.samples + taken)


def metric(name: str, unit: Unit = Unit.NANOSECONDS) -> Metric:
    """Return the metric called `name`. Reports show it from its first sample on."""
    found = _metrics.get(name)
    if found is None:
        found = _metrics.setdefault(name, Metric(name, unit))
    if found.unit is not unit:
        raise ValueError(f"metric {name!r} is in {found.unit.name}, not in {unit.name}")
    return found


def timed(name: str) -> Timed:
    """Time a block: `with timed("CompileTime"): ...`."""
    return Timed(metric(name))


def sampled() -> dict[str, tuple[Unit, Data]]:
    """Return unit and data of every metric that has a sample, in the order of the names."""
    known = sorted(list(_metrics.items()))
    found = {name: (each.unit, _with_coming(name, each.data())) for name, each in known}
    return {name: (unit, data) for name, (unit, data) in found.items() if data.samples}


def data_of(name: str) -> Data | None:
    """Return the data of one metric, or `None` if it has no sample."""
    found = _metrics.get(name)
    data = _with_coming(name, found.data()) if found is not None else None
    return data if data is not None and data.samples else None


def clear() -> None:
    """Forget the samples of every metric."""
    for found in list(_metrics.values()):
        found.clear()
    for _, forget in coming:
        forget()
