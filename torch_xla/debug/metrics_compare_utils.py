"""Compare the metrics of a run with earlier runs: has it become slower, does it compile more?

`get_data_points_from_metrics_reports` gathers the numbers of earlier reports, `compare_metrics` lists deviations.
"""

from collections.abc import Mapping, Sequence

from .._engine import metrics

DEFAULT_CONFIG = {"base_expression": "v <= v_mean + (v_stddev * 2.0)"}


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, str | float]:
    """Return every number of the text `metrics_report()` by its name.

    A metric gives `<name>__TotalSamples`, `__Accumulator_sec`, `__ValueRate_sec`, `__Rate` and `__Percentile_50_sec`;
    one of sizes has `_mb` (of 2**20 bytes) in place of `_sec`, one of plain numbers has neither. A counter gives
    `<name>__Value`. With `dehumanize` the values are numbers in these units; without it they are the text of
    the report, and the names have no unit.

    >>> from torch_xla.debug import metrics_compare_utils as compare
    >>> report = "Metric: CompileTime\\n  TotalSamples: 2\\n  Accumulator: 01s500ms000.000us\\n"
    >>> compare.parse_metrics_report(report + "Counter: aten::nonzero\\n  Value: 33\\n")
    {'CompileTime__TotalSamples': 2.0, 'CompileTime__Accumulator_sec': 1.5, 'aten::nonzero__Value': 33}
    """
    return metrics.parse_report(report, dehumanize)


def get_data_points_from_metrics_reports(metrics_reports: Sequence[str]) -> dict[str, list[float]]:
    """Return the values that each number took over several reports, in their order.

    A counter that a report does not show has the value 0 there; a metric it does not show has no value.
    `aten_ops_sum__Value` is the number of all operators that ran on the CPU.

    >>> from torch_xla.debug import metrics_compare_utils as compare
    >>> compare.get_data_points_from_metrics_reports(["", "Counter: aten::nonzero\\n  Value: 33\\n"])
    {'aten::nonzero__Value': [0, 33], 'aten_ops_sum__Value': [0, 33]}
    """
    return metrics.data_points(metrics_reports)


def compare_metrics(
    data_points: Mapping[str, Sequence[float]], metrics_report: str, config: Mapping[str, str] = DEFAULT_CONFIG
) -> str:
    """Return what in `metrics_report` is out of line with `data_points`, one line each; empty if nothing is.

    `config["base_expression"]` says what a value must satisfy: an expression of `v`, the value in this report, `v_mean`
    and `v_stddev`, mean and standard deviation of the data points. `config["<name>_expression"]` says it for one name.
    With numbers, arithmetic, comparisons, `and`, `or` and `not` it may use `abs`, `min`, `max` and `sqrt`. Raises
    `ValueError` for anything else.

    >>> from torch_xla.debug import metrics_compare_utils as compare
    >>> before = compare.get_data_points_from_metrics_reports(["Counter: UncachedCompile\\n  Value: 3\\n"] * 5)
    >>> now = "Counter: UncachedCompile\\n  Value: 40\\n"
    >>> print(compare.compare_metrics(before, now, {"base_expression": "v <= 2 * v_mean"}), end="")
    UncachedCompile__Value: v <= 2 * v_mean does not hold: v = 40, v_mean = 3, v_stddev = 0, over 5 reports
    """
    return metrics.report_differences(data_points, metrics_report, config)
