"""Recorded operations are counted before they run, and once."""

import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.step.schedule import clear_schedules


def test_operations_are_counted_when_they_are_recorded() -> None:
    x = torch.ones(5).to("xla")
    torch_xla.sync()
    met.clear_all()
    y = x + x
    (x * 3).sin()  # without a reference it will not run
    z = y + 1
    assert met.counter_value("xla::add") == 2 and met.counter_value("xla::sin") is None
    assert "xla::add" in met.counter_names()
    assert "Counter: xla::add\n  Value: 2\n" in met.metrics_report()
    for _ in range(2):
        torch_xla.sync()
        assert met.counter_value("xla::add") == 2
    assert z.tolist() == [3.0] * 5
    assert met.counter_value("xla::add") == 2
    met.clear_all()
    assert met.counter_value("xla::add") is None


def test_the_time_of_recording_is_there_from_the_first_operation_on() -> None:
    x = torch.ones(5).to("xla")
    torch_xla.sync()
    met.clear_all()
    assert met.metric_data("LazyTracing") is None and "LazyTracing" not in met.metric_names()
    y = x + x
    first, second = met.metric_data("LazyTracing"), met.metric_data("LazyTracing")
    assert first is not None and second is not None
    assert first[0] == second[0] == 1 and 0 < first[1] < second[1]
    assert "LazyTracing" in met.metric_names()
    torch_xla.sync()
    after = met.metric_data("LazyTracing")
    assert after is not None and after[0] == 1 and after[1] > second[1]
    assert y.tolist() == [2.0] * 5


def test_dynamo_counts_the_graphs_it_takes() -> None:
    clear_schedules()
    met.clear_all()
    # No other test compiles this graph: equal graphs of a process share a plan, and are counted once.
    double = torch.compile(lambda x: x * 2 - 0.71875, backend="openxla")
    assert double(torch.ones(3, device="xla")).tolist() == [1.28125] * 3
    assert met.counter_value("DynamoExtractCompiledGraph") == 1
    assert met.metric_data("DynamoExtractCompiledGraph") is None


def test_clearing_leaves_out_what_is_recorded_already() -> None:
    x = torch.ones(5).to("xla")
    torch_xla.sync()
    y = x + x
    met.clear_all()
    assert "xla::add" not in met.counter_names() and met.metric_data("LazyTracing") is None
    z = y * 2
    assert met.counter_value("xla::mul") == 1 and met.counter_value("xla::add") is None
    assert met.metric_data("LazyTracing") is not None
    assert z.tolist() == [4.0] * 5
