"""A report can be parsed, and a run is compared with earlier runs."""

import pytest

from torch_xla._engine.metrics import Unit, count, metric, report, report_comparison
from torch_xla.debug import metrics_compare_utils as compare

# The reports of the documents, word for word.
OF_2021 = """\
Metric: CompileTime
  TotalSamples: 5
  Accumulator: 28s920ms153.731us
  ValueRate: 092ms152.037us / second
  Rate: 0.0165028 / second
  Percentiles: 1%=428ms053.505us; 5%=428ms053.505us; 10%=428ms053.505us; 20%=03s640ms888.060us; 50%=03s650ms126.150us; \
80%=11s110ms545.595us; 90%=11s110ms545.595us; 95%=11s110ms545.595us; 99%=11s110ms545.595us
Metric: ExecuteTime
  TotalSamples: 1220
  Accumulator: 04m22s555ms668.071us
  ValueRate: 923ms872.877us / second
  Rate: 4.33049 / second
  Percentiles: 1%=045ms041.018us; 5%=213ms379.757us; 10%=215ms434.912us; 20%=217ms036.764us; 50%=219ms206.894us; \
80%=222ms335.146us; 90%=227ms592.924us; 95%=231ms814.500us; 99%=239ms691.472us
Counter: CachedCompile
  Value: 1215
Counter: CreateCompileHandles
  Value: 5
"""
OF_THE_GUIDE = """\
Metric: CompileTime
  TotalSamples: 202
  Counter: 06m09s401ms746.001us
  ValueRate: 778ms572.062us / second
  Rate: 0.425201 / second
  Percentiles: 1%=001ms32.778us; 5%=001ms61.283us; 99%=21s102ms853.173us
Counter: aten::nonzero
  Value: 33
"""


def test_the_report_of_the_documents_is_read() -> None:
    numbers = compare.parse_metrics_report(OF_2021)
    assert numbers["CompileTime__TotalSamples"] == 5
    assert numbers["CompileTime__Accumulator_sec"] == pytest.approx(28.920153731)
    assert numbers["CompileTime__ValueRate_sec"] == pytest.approx(0.092152037)
    assert numbers["CompileTime__Rate"] == 0.0165028
    assert numbers["CompileTime__Percentile_80_sec"] == pytest.approx(11.110545595)
    assert numbers["ExecuteTime__Accumulator_sec"] == pytest.approx(4 * 60 + 22.555668071)
    assert numbers["CachedCompile__Value"] == 1215 and numbers["CreateCompileHandles__Value"] == 5
    assert len(numbers) == 2 * (4 + 9) + 2


def test_the_older_report_of_the_guide_is_read() -> None:
    numbers = compare.parse_metrics_report(OF_THE_GUIDE)
    assert numbers["CompileTime__Accumulator_sec"] == pytest.approx(6 * 60 + 9.401746001)
    assert numbers["CompileTime__Percentile_1_sec"] == pytest.approx(0.001032778)
    assert numbers["aten::nonzero__Value"] == 33


def test_what_is_reported_is_read_back() -> None:
    metric("Waits").add(90_061_001_002_003)  # a day, an hour, a minute, a second and small change
    metric("InboundData", Unit.BYTES).add(3 * 2**30)
    metric("TensorsGraphSize", Unit.SCALAR).add(25)
    count("MarkStep", 2)
    numbers = report_comparison.parse_report(report.full_report(), dehumanize=True)
    assert numbers["Waits__Accumulator_sec"] == pytest.approx(90_061.001002003)
    assert numbers["InboundData__Accumulator_mb"] == 3 * 2**10
    assert numbers["TensorsGraphSize__Accumulator"] == numbers["TensorsGraphSize__Percentile_50"] == 25
    assert numbers["MarkStep__Value"] == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1), ("01m29s615ms", 89.615), ("04d17h11m07s495ms546.299us", 407467.495546299), ("2d", 172_800),
        ("3h", 10_800), ("5m", 300), ("5ms", 0.005), ("1m5ms", 60.005), ("12.5us", 12.5e-6), ("1h02s", 3602),
        ("1.5s", 1.5),
    ],
)  # fmt: skip
def test_a_time_may_leave_out_units(text: str, seconds: float) -> None:
    lines = f"TotalSamples: 1\nAccumulator: {text}\nValueRate: {text} / second\nPercentiles: 1%={text}; 99%={text}"
    for indent in ("  ", "\t", "        "):
        report = "\n".join(indent + line for line in ["Metric: Waits", *lines.splitlines(), "Counter: C", "Value: 4"])
        assert compare.parse_metrics_report(report) == pytest.approx(
            {
                "Waits__TotalSamples": 1,
                "Waits__Accumulator_sec": seconds,
                "Waits__ValueRate_sec": seconds,
                "Waits__Percentile_1_sec": seconds,
                "Waits__Percentile_99_sec": seconds,
                "C__Value": 4,
            }
        )


def test_an_empty_report_has_no_numbers() -> None:
    assert compare.parse_metrics_report("") == compare.parse_metrics_report("\n\nMetric: Waits") == {}
    assert compare.parse_metrics_report("Counter: C") == {}


def test_percentiles_that_were_broken_into_lines_are_read() -> None:
    report = "Metric: Waits\n  Percentiles: 1%=1s; 5%=2s;\n    50%=3s\nMetric: Sizes\n  Percentiles: 50%=2.00KB"
    assert compare.parse_metrics_report(report) == {
        "Waits__Percentile_1_sec": 1, "Waits__Percentile_5_sec": 2, "Waits__Percentile_50_sec": 3,
        "Sizes__Percentile_50_mb": 2 / 2**10,
    }  # fmt: skip


def test_without_units_the_words_stay_as_they_are() -> None:
    words = compare.parse_metrics_report(OF_2021, dehumanize=False)
    assert words["CompileTime__Accumulator"] == "28s920ms153.731us"
    assert words["CompileTime__ValueRate"] == "092ms152.037us"
    assert words["CompileTime__Percentile_1"] == "428ms053.505us"
    assert words["CachedCompile__Value"] == "1215"


def test_the_data_points_of_several_reports() -> None:
    points = compare.get_data_points_from_metrics_reports([OF_2021, OF_THE_GUIDE])
    assert points["CompileTime__TotalSamples"] == [5, 202]
    assert points["ExecuteTime__TotalSamples"] == [1220]  # the other one says nothing about it
    assert points["CachedCompile__Value"] == [1215, 0]  # a counter that is not there counted nothing
    assert points["aten_ops_sum__Value"] == [0, 33]


def test_a_run_like_the_others_has_no_difference() -> None:
    points = compare.get_data_points_from_metrics_reports([OF_2021] * 3)
    assert compare.compare_metrics(points, OF_2021) == ""


def test_what_is_out_of_line_is_named_with_the_numbers() -> None:
    points = compare.get_data_points_from_metrics_reports([OF_2021, OF_2021.replace("Value: 1215", "Value: 1205")])
    slower = OF_2021.replace("Value: 5\n", "Value: 8\n") + "Counter: aten::nonzero\n  Value: 33\n"
    assert compare.compare_metrics(points, slower) == (
        "CreateCompileHandles__Value: v <= v_mean + (v_stddev * 2.0) does not hold: "
        "v = 8, v_mean = 5, v_stddev = 0, over 2 reports\n"
        "aten_ops_sum__Value: v <= v_mean + (v_stddev * 2.0) does not hold: "
        "v = 33, v_mean = 0, v_stddev = 0, over 2 reports\n"
    )


def test_one_number_may_have_an_expression_of_its_own() -> None:
    points = compare.get_data_points_from_metrics_reports([OF_2021])
    config = {"base_expression": "1 > 0", "CachedCompile__Value_expression": "v_mean - 10 < v < v_mean"}
    found = compare.compare_metrics(points, OF_2021, config=config)
    assert found.startswith("CachedCompile__Value: v_mean - 10 < v < v_mean does not hold: v = 1215")
    assert found.count("\n") == 1


@pytest.mark.parametrize("expression", ["__import__('os')", "v.real", "w <= 1", "v <=", "'v' < 'w'", "print(v)"])
def test_an_expression_can_only_compute(expression: str) -> None:
    with pytest.raises(ValueError) as error:
        report_comparison.evaluate(expression, {"v": 1.0})
    assert str(error.value).startswith(
        f"{expression!r} is no expression of numbers, comparisons and these names: v, abs, min, max, sqrt"
    )


def test_the_configuration_must_say_what_is_normal() -> None:
    with pytest.raises(ValueError, match="it must have 'base_expression'"):
        compare.compare_metrics({}, "", config={})
