"""The metrics report as text, in the format that programs parse."""

from collections.abc import Iterable, Sequence

from ..config import metrics_percentiles
from .counters import names as names_of_counters
from .counters import value_of as counter_value
from .renamed_counters import current
from .samples import Data, Unit
from .samples import sampled as sampled_metrics

SHORT_COUNTERS = ("CachedCompile", "MarkStep", "DynamoSyncInputExecuteTime")
SHORT_METRICS = (
    "CompileTime",
    "ExecuteTime",
    "ExecuteReplicatedTime",
    "TransferToDeviceTime",
    "TransferFromDeviceTime",
)
FALLBACK = "aten::"  # how the counter of an operator that ran on the CPU begins

# These return a number to the host, not a tensor: the host waits for it although the device computes it.
READS = ("aten::_local_scalar_dense", "aten::equal")

# Suffix, nanoseconds in one, digits.
_TIMES = (
    ("d", 86_400_000_000_000, 2),
    ("h", 3_600_000_000_000, 2),
    ("m", 60_000_000_000, 2),
    ("s", 1_000_000_000, 2),
    ("ms", 1_000_000, 3),
)
_SIZES = ("B", "KB", "MB", "GB", "TB", "PB")


def format_duration(nanoseconds: float) -> str:
    """Return a duration from its largest unit down: `04m22s555ms668.071us`, `002.895us`."""
    rest = round(nanoseconds)
    text = ""
    for suffix, scale, digits in _TIMES:
        amount, rest = divmod(rest, scale)
        if amount or text:
            text += f"{amount:0{digits}d}{suffix}"
    return f"{text}{rest // 1000:03d}.{rest % 1000:03d}us"


def format_size(size: float) -> str:
    """Return a number of bytes in the largest unit that fits, of 1024 each: `1.50MB`."""
    exponent = 0
    # 1023.995 would print as 1024.00.
    while size >= 1023.995 and exponent < len(_SIZES) - 1:
        size /= 1024
        exponent += 1
    return f"{size:.2f}{_SIZES[exponent]}"


def format_number(number: float) -> str:
    """Return a number without a unit: exact if it is whole, else with six digits."""
    return str(int(number)) if float(number).is_integer() else f"{number:.6g}"


_FORMATS = {Unit.NANOSECONDS: format_duration, Unit.BYTES: format_size, Unit.SCALAR: format_number}


def _metric_lines(name: str, unit: Unit, data: Data, percentiles: Sequence[float]) -> list[str]:
    show = _FORMATS[unit]
    lines = [
        f"Metric: {name}",
        f"  TotalSamples: {data.total_samples}",
        f"  Accumulator: {show(data.accumulator)}",
    ]
    # A sample is stamped at its end, so the first one is not within the span of the stamps.
    seconds = data.samples[-1][0] - data.samples[0][0]
    if seconds > 0:
        later = [value for _, value in data.samples[1:]]
        lines.append(f"  ValueRate: {show(sum(later) / seconds)} / second")
        lines.append(f"  Rate: {len(later) / seconds:.6g} / second")
    ordered = sorted(value for _, value in data.samples)
    shown = (f"{100 * p:g}%={show(ordered[min(int(p * len(ordered)), len(ordered) - 1)])}" for p in percentiles)
    lines.append(f"  Percentiles: {'; '.join(shown)}")
    return lines


def _report(metrics: dict[str, tuple[Unit, Data]], counter_names: Iterable[str]) -> str:
    lines: list[str] = []
    percentiles = metrics_percentiles()
    for name, (unit, data) in metrics.items():
        lines += _metric_lines(name, unit, data, percentiles)
    for name in counter_names:
        lines += [f"Counter: {name}", f"  Value: {counter_value(name)}"]
    return "".join(f"{line}\n" for line in lines)


def fallback_names() -> list[str]:
    """Return the counters of operators that ran on the CPU or returned a number to the host."""
    # An operator of an extension is counted with its own namespace. Operators on the device are counted as `xla::`.
    return [name for name in names_of_counters() if "::" in name and not name.startswith("xla::")]


def full_report() -> str:
    """Return every metric and every counter."""
    return _report(sampled_metrics(), names_of_counters())


def short_report(counter_names: Sequence[str], metric_names: Sequence[str]) -> str:
    """Return the named metrics and counters, as far as they are active, and every fallback to the CPU."""
    wanted = [name for name in map(current, counter_names) if counter_value(name) is not None]
    wanted += [name for name in fallback_names() if name not in wanted]
    sampled = sampled_metrics()
    return _report({name: sampled[name] for name in map(current, metric_names) if name in sampled}, wanted)
