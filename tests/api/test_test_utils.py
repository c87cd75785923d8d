"""Output of training examples, and tests in separate processes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_xla.test import test_utils

ROOT = Path(__file__).parents[2]

TEST = """
import os, unittest
from torch_xla.test.test_utils import mp_test

class Case(unittest.TestCase):
    @mp_test
    def test_elsewhere(self):
        assert os.getpid() != int(os.environ["PARENT"])
        self.assertEqual(self._testMethodName, "test_elsewhere")

    @mp_test
    def test_failing(self):
        self.fail("here")

if __name__ == "__main__":
    os.environ["PARENT"] = str(os.getpid())
    unittest.main()
"""


@pytest.mark.slow
def test_a_test_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text(TEST)
    result = subprocess.run(
        [sys.executable, "case.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "Ran 2 tests" in result.stderr and "FAILED (failures=1)" in result.stderr
    assert "Case.test_failing failed in its process: exit status 1" in result.stderr


class Writer:
    """Stands for TensorBoard's writer."""

    def __init__(self) -> None:
        self.written: dict[str, Any] = {}
        self.calls: list[str] = []

    def add_scalar(self, name: str, value: Any, step: int | None) -> None:
        self.written[name] = (value, step)

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


def test_updates_are_printed_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer()
    loss = torch.tensor(0.5, device="xla")
    test_utils.print_training_update("xla:0", 3, loss, 10.0, 9.0, summary_writer=writer)
    test_utils.print_test_update("xla:0", 90.0, step=7)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("| Training Device=xla:0/0 Step=3 Loss=0.50000 Rate=10.00 GlobalRate=9.00 Time=")
    assert second.startswith("| Test Device=xla:0 Step=7 Accuracy=90.00 Time=")
    assert writer.written == {"examples/sec": (9.0, 3), "average_loss": (0.5, 3)}
    test_utils.write_to_summary(writer, 4, {"a": 1.0}, write_xla_metrics=True)
    assert writer.written["a"] == (1.0, 4) and "CompileTime" in writer.written
    test_utils.close_summary_writer(writer)
    assert writer.calls == ["flush", "close"]


def test_without_a_writer_nothing_is_written() -> None:
    assert test_utils.get_summary_writer(None) is None
    test_utils.write_to_summary(None, 1, {"a": 1.0})
    test_utils.close_summary_writer(None)
