"""A run that is asked for its failures writes them, with workers and without; `tools/retry.py` judges them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tools import retry

# Fails in the first process that runs it, and passes in the next; the other test always fails.
TESTS = """
from pathlib import Path

MARK = Path(__file__).with_suffix(".ran")

def test_sporadic():
    first = not MARK.exists()
    MARK.touch()
    assert not first, "the first time"

def test_broken():
    assert False, "every time"

def test_sound():
    pass
"""


def run(folder: Path, *options: str) -> Path:
    """Run the three tests above by pytest with our plugin alone, and return the file of failures."""
    (folder / "conftest.py").write_text(
        "from tests.support import failures\n"
        "def pytest_addoption(parser):\n    parser.addoption('--failures')\n"
        "def pytest_configure(config):\n    failures.configure(config)\n"
    )
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    (folder / "test_three.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "--failures=out/failures.json", *options]
    subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    return folder / "out" / "failures.json"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(retry, "ROOT", tmp_path)


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one-process", "workers"])
def test_the_failures_of_a_run_are_written(tmp_path: Path, options: tuple[str, ...]) -> None:
    left = json.loads(run(tmp_path, *options).read_text())
    assert left["exit_status"] == retry.TESTS_FAILED
    texts = {each["test"]: each["text"] for each in left["failures"]}
    assert texts.keys() == {"test_three.py::test_sporadic", "test_three.py::test_broken"}
    assert "every time" in texts["test_three.py::test_broken"]


def test_a_test_that_passes_alone_is_sporadic(tmp_path: Path, alone: None, capfd: pytest.CaptureFixture[str]) -> None:
    file = run(tmp_path, "-k", "sporadic or sound")
    assert retry.verdict([retry.read(str(file))]) == ""
    printed = capfd.readouterr().out
    assert "sporadic: test_three.py::test_sporadic passed alone" in printed and "the first time" in printed


def test_a_test_that_fails_twice_counts(tmp_path: Path, alone: None) -> None:
    assert retry.verdict([retry.read(str(run(tmp_path)))]) == "test_three.py::test_broken failed twice"


def test_more_than_three_failures_count() -> None:
    two = retry.Run(1, {"a": "", "b": ""}, "")
    assert "4 tests failed" in retry.verdict([two, two._replace(failures={"c": "", "d": ""}, mark="slow")])


@pytest.mark.parametrize("ended", [retry.Run(2, {"a": ""}, ""), retry.Run(1, {}, ""), retry.Run(-1, {}, "")])
def test_a_run_that_was_ended_is_not_tried_again(ended: retry.Run) -> None:
    assert "nothing is tried again" in retry.verdict([retry.Run(0, {}, ""), ended])


def test_a_run_that_wrote_nothing_was_ended(tmp_path: Path) -> None:
    assert retry.read(f"{tmp_path}/none.json:slow") == retry.Run(-1, {}, "slow")


def test_a_run_without_failures_passes(tmp_path: Path) -> None:
    assert retry.verdict([retry.read(str(run(tmp_path, "-k", "sound")))]) == ""
