"""Append the metrics report to a file: what `XLA_METRICS_FILE` does at every step, on demand."""

from .._engine import config, diagnostics


def save_metrics(metrics_file: str | None = None) -> None:
    """Append `[MetricsData; step=N]` and the metrics report to `metrics_file`, by default to that of the settings.

    `"STDOUT"` and `"STDERR"` mean the streams. N counts the reports this process saved. Without an argument and without
    `XLA_METRICS_FILE` nothing happens. Where several replicas run, `.` and the ordinal follow the name.

    >>> from torch_xla.debug import metrics, metrics_saver
    >>> metrics.clear_all()
    >>> metrics_saver.save_metrics("STDOUT")
    [MetricsData; step=...]
    ...
    """
    file = metrics_file or config.metrics_file()
    if file:
        diagnostics.save_metrics_report(file)
