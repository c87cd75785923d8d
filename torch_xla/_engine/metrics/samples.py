"""Metrics with samples: a total for all time, and the latest samples with the time at which each was taken."""

import time
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType

from ..config import metrics_samples


class Unit(Enum):
    """What the values of a metric are: it decides how the report prints them."""

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

    Adding takes no lock, as with counters; what is asked for seldom is worked out then.
    """

    __slots__ = ("_accumulator", "_samples", "_total_samples", "name", "unit")

    def __init__(self, name: str, unit: Unit) -> None:
        self.name = name
        self.unit = unit
        self.clear()

    def add(self, value: float) -> None:
        """Adds one sample, taken now."""
        self._samples.append((time.time(), value))
        self._total_samples += 1
        self._accumulator += value

    def data(self) -> Data:
        """What was sampled so far."""
        # Another thread may just add one: the list is made at once, and a sample is there before it counts.
        total, accumulator, latest = self._total_samples, self._accumulator, list(self._samples)
        return Data(total, accumulator, tuple((when, float(value)) for when, value in latest))

    def clear(self) -> None:
        """Forgets every sample; the object stays valid, since other rooms keep it."""
        self._total_samples = 0
        self._accumulator = 0.0
        self._samples: deque[tuple[float, float]] = deque(maxlen=metrics_samples())


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


def metric(name: str, unit: Unit = Unit.NANOSECONDS) -> Metric:
    """The metric called `name`. Nobody sees it before its first sample."""
    found = _metrics.get(name)
    if found is None:
        found = _metrics.setdefault(name, Metric(name, unit))
    if found.unit is not unit:
        raise ValueError(f"metric {name!r} is in {found.unit.name}, not in {unit.name}")
    return found


def timed(name: str) -> Timed:
    """Times a block: `with timed("CompileTime"): ...`."""
    return Timed(metric(name))


def sampled() -> dict[str, tuple[Unit, Data]]:
    """Unit and data of every metric that has a sample, in the order of the names."""
    found = {name: (each.unit, each.data()) for name, each in sorted(list(_metrics.items()))}
    return {name: (unit, data) for name, (unit, data) in found.items() if data.samples}


def data_of(name: str) -> Data | None:
    """The data of one metric, or `None` if it has no sample."""
    found = _metrics.get(name)
    data = found.data() if found is not None else None
    return data if data is not None and data.samples else None


def clear() -> None:
    """Forgets the samples of every metric."""
    for found in list(_metrics.values()):
        found.clear()
