"""One process compiles, the others wait for it, and a dead process does not keep them waiting."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from torch_xla._engine.compile.disk import compile_turn

pytestmark = pytest.mark.skipif(compile_turn.fcntl is None, reason="the system has no locks on files")


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / compile_turn.FOLDER / "a-program"


def test_a_turn_leaves_nothing_behind(path: Path) -> None:
    for _ in range(2):
        with compile_turn.held(path, fail) as has_waited:
            assert not has_waited and path.exists()
        assert not path.exists()
    with pytest.raises(KeyError), compile_turn.held(path, fail):
        raise KeyError
    assert not path.exists()


def test_others_wait_until_a_turn_ends_and_then_have_none(path: Path) -> None:
    found: list[bool] = []
    ended = threading.Event()

    def wait() -> None:
        with compile_turn.held(path, fail) as has_waited:
            found.append(has_waited and ended.is_set())

    threads = [threading.Thread(target=wait) for _ in range(8)]
    with compile_turn.held(path, fail) as has_waited:
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        assert not has_waited and found == []
        ended.set()
    for thread in threads:
        thread.join(30)
    assert found == [True] * 8 and not path.exists()


def test_turns_of_other_programs_do_not_wait(path: Path) -> None:
    with compile_turn.held(path, fail) as one, compile_turn.held(path.with_name("another"), fail) as other:
        assert not one and not other


def test_a_killed_process_gives_its_turn_to_exactly_one_other(path: Path) -> None:
    program = (
        "import runpy, sys, time\nfrom pathlib import Path\nheld = runpy.run_path(sys.argv[2])['held']\n"
        "with held(Path(sys.argv[1]), print):\n    print('mine', flush=True)\n    time.sleep(600)\n"
    )  # without importing PyTorch
    arguments = [sys.executable, "-c", program, str(path), compile_turn.__file__]
    owner = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None and owner.stdout.readline() == "mine\n"
    found: list[bool] = []

    def wait() -> None:
        with compile_turn.held(path, fail) as has_waited:
            time.sleep(0.2)
            found.append(has_waited)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    assert found == []
    owner.send_signal(signal.SIGKILL)
    owner.wait(30)
    owner.stdout.close()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [False, True, True, True] and not path.exists()


def test_a_process_that_does_not_come_to_an_end_is_not_awaited_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_turn, "_LONGEST", 0.1)
    with compile_turn.held(path, fail):
        with compile_turn.held(path, fail) as has_waited:
            assert has_waited
        assert path.exists()


def test_a_file_system_without_locks_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(compile_turn.fcntl, "flock", no_locks)
    told: list[str] = []
    with compile_turn.held(path, told.append) as has_waited:
        assert not has_waited
    assert len(told) == 1 and "Processes cannot wait for each other's programs" in told[0]


def test_a_link_to_elsewhere_is_not_written_to(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    (tmp_path / "precious").write_bytes(b"data")
    path.symlink_to(tmp_path / "precious")
    with compile_turn.held(path, fail) as has_waited:
        assert not has_waited
    assert (tmp_path / "precious").read_bytes() == b"data"
