"""Counters and timers of everything the `xla` device did.

Begin with `print(metrics_report())`. Counters whose names start with `aten::` are operators that ran on the CPU.
"""

from collections.abc import Sequence

from .._engine import metrics


def counter_names() -> list[str]:
    """Return the names of all counters that counted something.

    >>> from torch_xla.debug import metrics
    >>> metrics.clear_all()
    >>> metrics.counter_names()
    []
    """
    return metrics.counter_names()


def counter_value(name: str) -> int | None:
    """Return the value of a counter, or `None` if it counted nothing. Names of earlier versions are translated.

    >>> from torch_xla.debug import metrics
    >>> print(metrics.counter_value("aten::nonzero"))  # no operator of this name ran on the CPU
    None
    """
    return metrics.counter_value(metrics.current_counter_name(name))


def clear_counters() -> None:
    """Set all counters to zero.

    >>> from torch_xla.debug import metrics
    >>> metrics.clear_counters()
    """
    metrics.clear_counters()


def metric_names() -> list[str]:
    """Return the names of all metrics that have samples.

    >>> from torch_xla.debug import metrics
    >>> metrics.clear_all()
    >>> metrics.metric_names()
    []
    """
    return list(metrics.sampled_metrics())


def metric_data(name: str) -> tuple[int, float, tuple[tuple[float, float], ...]] | None:
    """Return the data of a metric, `(total_samples, accumulator, ((time_sec, value), ...))`, or `None` without samples.

    The accumulator is the sum of all samples ever taken; of the samples themselves the latest 1,024 are kept
    (`XLA_METRICS_SAMPLES`). Times are in nanoseconds, sizes in bytes. Names of earlier versions, such as
    `TransferFromServerTime`, are translated.

    >>> from torch_xla.debug import metrics
    >>> data = metrics.metric_data("CompileTime")
    >>> compiles = data[0] if data else 0
    """
    data = metrics.metric_data(metrics.current_counter_name(name))
    return None if data is None else (data.total_samples, data.accumulator, data.samples)


def clear_metrics() -> None:
    """Forget the samples of all metrics.

    >>> from torch_xla.debug import metrics
    >>> metrics.clear_metrics()
    """
    metrics.clear_metrics()


def clear_all() -> None:
    """Set all counters to zero and forgets the samples of all metrics.

    >>> from torch_xla.debug import metrics
    >>> metrics.clear_all()
    >>> metrics.metrics_report()
    ''
    """
    metrics.clear_counters()
    metrics.clear_metrics()


def metrics_report() -> str:
    """Return all metrics and counters as text.

    ```
    Metric: ExecuteTime
      TotalSamples: 3
      Accumulator: 012ms104.329us
      ValueRate: 003ms689.970us / second
      Rate: 16.9556 / second
      Percentiles: 1%=003ms104.329us; 5%=003ms104.329us; 10%=003ms104.329us; ...
    Counter: MarkStep
      Value: 2
    ```

    The rates are over the time that the kept samples span.

    >>> from torch_xla.debug import metrics
    >>> metrics.clear_all()
    >>> metrics.metrics_report()
    ''
    """
    return metrics.full_report()


def short_metrics_report(counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None) -> str:
    """Return some metrics and counters as text, and every fallback to the CPU.

    Without names: compiles, executions and transfers.

    >>> from torch_xla.debug import metrics
    >>> text = metrics.short_metrics_report(metric_names=["CompileTime"])
    """
    return metrics.short_report(counter_names or metrics.SHORT_COUNTERS, metric_names or metrics.SHORT_METRICS)


def executed_fallback_ops() -> list[str]:
    """Return the names of operators that ran on the CPU for lack of a rule, and of operators that read a value.

    Reading a number is the work of `aten::_local_scalar_dense`, which is what `.item()`, `float(x)` and `if x:` call,
    and of `aten::equal`: the host waits for their result as it does for the inputs of an operator without a rule.

    >>> from torch_xla.debug import metrics
    >>> metrics.clear_all()
    >>> metrics.executed_fallback_ops()
    []
    """
    return metrics.fallback_names()
