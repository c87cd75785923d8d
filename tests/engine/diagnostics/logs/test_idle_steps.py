"""A sync with nothing recorded is a step for the tools that look at steps: inference loops read before they sync."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla._engine.diagnostics.logs import switches

Loop = Callable[[int], None]


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    met.clear_all()
    yield
    switches.apply_settings()


def inference(steps: int) -> None:
    x = torch.ones(3).to("xla")
    for _ in range(steps):
        (x + 1).sum().item()
        xm.mark_step()


def eagerly(steps: int) -> None:
    with torch_xla.experimental.eager_mode_context(True):
        inference(steps)


@pytest.mark.parametrize("loop", [inference, eagerly])
def test_each_step_is_told_and_its_metrics_are_saved(
    loop: Loop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "metrics"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_METRICS_FILE", str(file))
        patch.setenv("XLA_EMIT_STEPLOG", "1")
        switches.apply_settings()
        loop(3)
    assert re.findall(r"(?m)^Counter: MarkStep\n  Value: (\d+)$", file.read_text()) == ["1", "2", "3"]
    assert file.read_text().count("[MetricsData; step=") == 3
    told = capsys.readouterr().err.splitlines()
    line = r"torch_xla\.sync: step (\d+) on xla:0, \d+\.\d{3} ms, ended by .*test_idle_steps\.py:\d+ in inference"
    numbers = [int(found[1]) for found in (re.fullmatch(line, text) for text in told) if found]
    assert len(told) == 3 and numbers == list(range(numbers[0], numbers[0] + 3))


@pytest.mark.parametrize("loop", [inference, eagerly])
def test_reads_that_are_too_frequent_are_told(loop: Loop, tmp_path: Path) -> None:
    file = tmp_path / "analysis"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PT_XLA_DEBUG", "1")
        patch.setenv("PT_XLA_DEBUG_FILE", str(file))
        switches.apply_settings()
        loop(12)
    told = file.read_text()
    assert "pt-xla-profiler: TransferFromDeviceTime too frequent: 12 counts during 12 steps\n" in told
    assert ("Analysis:" in told) is (loop is inference)  # in eager mode every operation is a program
