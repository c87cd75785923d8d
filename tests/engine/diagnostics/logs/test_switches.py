"""The tools that settings ask for are turned on and off while a program runs."""

from pathlib import Path

import pytest
import torch

import torch_xla
from torch_xla._engine.diagnostics.logs import switches
from torch_xla._engine.dispatch.checks import device_values
from torch_xla._engine.metrics.observers import observers


def test_a_new_program_looks_at_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert observers.before_new_program == switches.apply_settings
    file = tmp_path / "steps"
    torch_xla.sync()  # what earlier tests have left may be a new program
    with monkeypatch.context() as patch:
        patch.setenv("XLA_METRICS_FILE", str(file))
        torch_xla.sync()
        assert not file.exists()  # nothing was compiled since
        torch.ones(3, 7, 11).to("xla").cos().tolist()  # a program of its own
        torch_xla.sync()
        assert file.read_text().startswith("[MetricsData; step=")
    switches.apply_settings()
    size = file.stat().st_size
    torch_xla.sync()
    assert file.stat().st_size == size


def test_what_is_settled_twice_is_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("XLA_CHECK_VALUES", "1")
        switches.apply_settings()
        switches.apply_settings()
        assert device_values.are_on()
    switches.apply_settings()
    assert not device_values.are_on()
