"""All processes take a divided program from disk, or none. Real ones: tests/api/distributed/test_spmd_processes.py."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from torch_xla._engine.compile.disk import process_consensus
from torch_xla._engine.processes import coordination, heartbeats


class Service:
    """The service between processes, within one process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        self.changed = threading.Condition()

    def propose(self, key: str, value: str) -> str:
        with self.changed:
            found = self.values.setdefault(key, value)
            self.changed.notify_all()
            return found

    def next_number(self, key: str) -> int:
        with self.changed:
            self.numbers[key] = self.numbers.get(key, 0) + 1
            return self.numbers[key]

    def awaited(self, key: str, seconds: float) -> bytes:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, seconds):
                raise TimeoutError
            return self.values[key].encode()


def answers(starts: list[str], monkeypatch: pytest.MonkeyPatch, late: int = 0) -> list[bool]:
    """Return the answer that each process gets; `late` processes do not ask."""
    service: Any = Service()
    key: Any = SimpleNamespace(digest="d", target=SimpleNamespace(processes=tuple(range(len(starts) + late))))
    monkeypatch.setattr(process_consensus, "_SECONDS", 0.2 if late else 60)
    monkeypatch.setattr(heartbeats, "watch", lambda: service)
    monkeypatch.setattr(coordination, "awaited", service.awaited)
    found: dict[int, bool] = {}

    def ask(index: int) -> None:
        found[index] = process_consensus.agreed(service, key, starts[index], 1)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(starts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[index] for index in range(len(starts))]


@pytest.mark.parametrize(
    ("starts", "late", "answer"),
    [
        (["one", "one", "one"], 0, True),
        (["one", "", "one"], 0, False),
        (["one", "two", "one"], 0, False),
        (["one", "one"], 1, False),
        (["", ""], 0, False),
    ],
)
def test_all_processes_get_the_same_answer(
    starts: list[str], late: int, answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answers(starts, monkeypatch, late) == [answer] * len(starts)


def test_who_is_alone_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "watch", lambda: None)
    assert not process_consensus.have(SimpleNamespace(), "one")  # type: ignore[arg-type]


def test_what_was_asked_long_ago_is_forgotten_and_no_time_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_consensus, "_asked", {})
    monkeypatch.setattr(process_consensus, "_MOST", 4)
    assert [process_consensus._times_asked("first") for _ in range(3)] == [1, 2, 3]
    for number in range(20):
        assert process_consensus._times_asked(str(number)) >= 1
        assert len(process_consensus._asked) <= 4
    assert process_consensus._times_asked("first") > 3 and process_consensus._times_asked("0") > 1
