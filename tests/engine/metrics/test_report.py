"""The report: its text is parsed by programs, so it is pinned."""

import gc
from collections.abc import Callable

import pytest
import torch

from torch_xla._engine.metrics import Unit, count, metric, report, samples
from torch_xla.debug import metrics as met

MINUTE = 60_000_000_000

FULL_REPORT = """\
Metric: CompileTime
  TotalSamples: 1
  Accumulator: 382ms258.723us
  Percentiles: 1%=382ms258.723us; 5%=382ms258.723us; 10%=382ms258.723us; 20%=382ms258.723us; 50%=382ms258.723us; \
80%=382ms258.723us; 90%=382ms258.723us; 95%=382ms258.723us; 99%=382ms258.723us
Metric: ExecuteTime
  TotalSamples: 3
  Accumulator: 006ms000.500us
  ValueRate: 002ms000.250us / second
  Rate: 1 / second
  Percentiles: 1%=001ms000.500us; 5%=001ms000.500us; 10%=001ms000.500us; 20%=001ms000.500us; 50%=002ms000.000us; \
80%=003ms000.000us; 90%=003ms000.000us; 95%=003ms000.000us; 99%=003ms000.000us
Metric: OutboundData
  TotalSamples: 1
  Accumulator: 1.50MB
  Percentiles: 1%=1.50MB; 5%=1.50MB; 10%=1.50MB; 20%=1.50MB; 50%=1.50MB; 80%=1.50MB; 90%=1.50MB; 95%=1.50MB; \
99%=1.50MB
Metric: TensorsGraphSize
  TotalSamples: 1
  Accumulator: 25
  Percentiles: 1%=25; 5%=25; 10%=25; 20%=25; 50%=25; 80%=25; 90%=25; 95%=25; 99%=25
Counter: MarkStep
  Value: 2
Counter: aten::nonzero
  Value: 33
"""


@pytest.fixture
def sample_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Unit, float, float], None]:
    """Adds a sample at a time of our choice."""

    def add(name: str, unit: Unit, seconds: float, value: float) -> None:
        monkeypatch.setattr(samples.time, "time", lambda: seconds)
        metric(name, unit).add(value)

    return add


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "000.000us"),
        (2_895, "002.895us"),
        (28_104_329, "028ms104.329us"),
        (999_999_999.6, "01s000ms000.000us"),
        (3_640_888_060, "03s640ms888.060us"),
        (28_920_153_731, "28s920ms153.731us"),
        (4 * MINUTE + 22_555_668_071, "04m22s555ms668.071us"),
        (60 * MINUTE, "01h00m00s000ms000.000us"),
        (49 * 60 * MINUTE, "02d01h00m00s000ms000.000us"),
    ],
)
def test_a_duration_is_written_from_its_largest_unit_down(nanoseconds: float, text: str) -> None:
    assert report.format_duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.00B"),
        (1023, "1023.00B"),
        (1023.999, "1.00KB"),
        (1024, "1.00KB"),
        (1.5 * 2**20, "1.50MB"),
        (2**60, "1024.00PB"),
    ],
)
def test_a_size_is_written_in_the_largest_unit_that_fits(size: float, text: str) -> None:
    assert report.format_size(size) == text


@pytest.mark.parametrize(("number", "text"), [(0.0, "0"), (1234567.0, "1234567"), (2 / 3, "0.666667")])
def test_a_number_without_unit_is_exact_if_whole(number: float, text: str) -> None:
    assert report.format_number(number) == text


def test_the_full_report_word_for_word(sample_at: Callable[[str, Unit, float, float], None]) -> None:
    sample_at("ExecuteTime", Unit.NANOSECONDS, 100, 2_000_000)
    sample_at("ExecuteTime", Unit.NANOSECONDS, 101, 3_000_000)
    sample_at("ExecuteTime", Unit.NANOSECONDS, 102, 1_000_500)
    sample_at("CompileTime", Unit.NANOSECONDS, 100, 382_258_723)
    sample_at("OutboundData", Unit.BYTES, 100, 3 * 2**19)
    sample_at("TensorsGraphSize", Unit.SCALAR, 100, 25)
    count("aten::nonzero", 33)
    count("MarkStep", 2)
    assert met.metrics_report() == FULL_REPORT


def test_the_percentiles_are_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_METRICS_PERCENTILES", "0:0.5:0.999:1")
    for value in range(100):
        metric("Mine", Unit.SCALAR).add(value)
    assert met.metrics_report().splitlines()[-1] == "  Percentiles: 0%=0; 50%=50; 99.9%=99; 100%=99"


@pytest.mark.parametrize("text", ["0.5,0.9", "50", "-0.1", ""])
def test_percentiles_that_are_no_fractions_say_so(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_METRICS_PERCENTILES", text)
    with pytest.raises(ValueError) as error:
        met.metrics_report()
    expected = f"XLA_METRICS_PERCENTILES is {text!r}; it must be fractions, such as '0.1:0.5:0.9'."
    assert str(error.value) == expected


def test_a_report_of_nothing_is_empty() -> None:
    gc.collect()  # what earlier tests left counts when it goes
    met.clear_all()
    assert met.metrics_report() == met.short_metrics_report() == ""


def test_the_short_report_shows_the_key_figures_and_every_fallback() -> None:
    for name in ("CachedCompile", "CreateXlaTensor", "aten::nonzero"):
        count(name)
    for name in ("ExecuteTime", "DeviceLockWait"):
        metric(name).add(1)
    lines = met.short_metrics_report().splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "Metric: ExecuteTime",
        "Counter: CachedCompile",
        "Counter: aten::nonzero",
    ]


def test_the_short_report_shows_what_is_asked_for() -> None:
    for name in ("CachedCompile", "CreateXlaTensor", "aten::nonzero"):
        count(name)
    for name in ("ExecuteTime", "DeviceLockWait"):
        metric(name).add(1)
    text = met.short_metrics_report(["CreateXlaTensor", "aten::nonzero", "Unknown"], ["DeviceLockWait", "Unknown"])
    assert [line for line in text.splitlines() if not line.startswith(" ")] == [
        "Metric: DeviceLockWait",
        "Counter: CreateXlaTensor",
        "Counter: aten::nonzero",
    ]


def test_names_of_earlier_versions_mean_what_took_their_place() -> None:
    count("CachedCompile", 395)
    metric("TransferFromDeviceTime").add(7)
    assert met.counter_value("CachedSyncTensors") == 395
    data = met.metric_data("TransferFromServerTime")
    assert data is not None and data[:2] == (1, 7.0)
    lines = met.short_metrics_report(["CachedSyncTensors"], ["TransferFromServerTime"]).splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "Metric: TransferFromDeviceTime",
        "Counter: CachedCompile",
    ]


def test_the_public_functions_tell_what_was_counted_and_sampled() -> None:
    count("MarkStep", 2)
    count("aten::nonzero")
    metric("CompileTime").add(5)
    assert met.counter_names() == ["MarkStep", "aten::nonzero"]
    assert met.counter_value("MarkStep") == 2 and met.counter_value("Unknown") is None
    assert met.executed_fallback_ops() == ["aten::nonzero"]
    assert met.metric_names() == ["CompileTime"]
    data = met.metric_data("CompileTime")
    assert data is not None and (data[0], data[1], data[2][0][1]) == (1, 5.0, 5.0)
    assert met.metric_data("Unknown") is None
    met.clear_metrics()
    assert met.metric_names() == [] and met.counter_value("MarkStep") == 2
    met.clear_counters()
    assert met.counter_names() == []
    count("MarkStep")
    metric("CompileTime").add(5)
    met.clear_all()
    assert met.counter_names() == met.metric_names() == []


def test_reading_a_number_is_counted_as_the_operator_that_does_it() -> None:
    x = torch.ones(3).to("xla")
    assert x[0].item() == 1 and float(x[1]) == 1 and bool(x[2] > 0)
    assert torch.equal(x, x + 0) and not torch.equal(x, x[:2])  # different shapes need no comparison of elements
    assert met.counter_value("aten::_local_scalar_dense") == 3
    assert met.counter_value("aten::equal") == 1
    assert met.executed_fallback_ops() == ["aten::_local_scalar_dense", "aten::equal"]
