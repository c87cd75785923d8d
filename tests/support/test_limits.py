import subprocess
import sys

import pytest

from tests.support import limits

ENDLESS = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.2)


@pytest.mark.parametrize("options", [{}, {"timeout": None}, {"capture_output": True}], ids=str)
def test_a_program_that_does_not_end_is_ended(options: dict[str, object]) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(ENDLESS, **options)  # type: ignore[call-overload]


def test_it_is_gone_when_its_block_ends() -> None:
    with (
        pytest.raises(subprocess.TimeoutExpired),
        subprocess.Popen(ENDLESS, stdout=subprocess.PIPE) as process,
    ):
        process.communicate()
    assert process.returncode < 0


def test_a_limit_of_its_own_counts() -> None:
    done = subprocess.run([sys.executable, "-c", "import time; time.sleep(0.4)"], timeout=60)
    assert done.returncode == 0
