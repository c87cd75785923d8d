"""The metrics report, appended to a file or written out."""

import re
from pathlib import Path

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.diagnostics.logs import metrics_report_file
from torch_xla._engine.metrics import events
from torch_xla._engine.processes import identity
from torch_xla.debug import metrics_saver


def test_the_metrics_are_saved_on_demand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics_saver.save_metrics()  # no file is set
    metrics_saver.save_metrics("STDERR")
    written = capsys.readouterr()
    assert written.out == "" and re.match(r"\[MetricsData; step=\d+\]\n", written.err)
    file = tmp_path / "metrics.txt"
    monkeypatch.setenv("XLA_METRICS_FILE", str(file))
    met.clear_all()
    torch_xla._XLAC._xla_increment_counter("Mine", 3)
    for _ in range(2):
        metrics_saver.save_metrics()
    numbers = [int(number) for number in re.findall(r"step=(\d+)", file.read_text())]
    assert numbers == [numbers[0], numbers[0] + 1]
    assert file.read_text().count("Counter: Mine\n  Value: 3\n") == 2


def test_each_of_several_replicas_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(identity, "replica_count", lambda: 4)
    monkeypatch.setattr(identity, "replica_index", lambda: 3)
    metrics_report_file.save_report(str(tmp_path / "metrics"))
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.3"]


def test_a_setting_that_names_another_file_is_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.ones(1).to("xla")  # without a use of a device there is no step
    listening = events.watched
    with monkeypatch.context() as patch:
        for name in ("first", "second"):
            patch.setenv("XLA_METRICS_FILE", str(tmp_path / name))
            metrics_report_file.apply_settings()
            torch_xla.sync()
    metrics_report_file.apply_settings()
    torch_xla.sync()
    assert [(tmp_path / name).read_text().count("[MetricsData; ") for name in ("first", "second")] == [1, 1]
    assert events.watched == listening
