"""Messages are recorded when somebody waits for one, in one order on both ends."""

import gc
from typing import Any

import pytest
import torch

from torch_xla._engine.client import processes
from torch_xla._engine.distributed import collectives, messages
from torch_xla._engine.distributed.messages import Message


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is recorded by process 1 of 4: root, pair, tag and sizes of each message, and where it starts."""
    found: list[Any] = []

    def broadcast(tensors: list[torch.Tensor], root: int, groups: Any, tag: int) -> list[torch.Tensor]:
        found.append((root, groups, tag, [list(tensor.shape) for tensor in tensors]))
        return [tensor + 5 for tensor in tensors]

    monkeypatch.setattr(processes, "process_index", lambda: 1)
    monkeypatch.setattr(collectives, "pair", lambda first, second: (first, second))
    monkeypatch.setattr(collectives, "broadcast", broadcast)
    monkeypatch.setattr(collectives, "start", lambda: found.append("start"))
    return found


def test_messages_of_both_ends_have_one_order() -> None:
    sent = [Message([], *each) for each in ((1, 0, 0), (0, 1, 2), (3, 0, 0), (0, 1, 1), (2, 1, 0))]
    ordered = [(each.sender, each.receiver, each.tag) for each in sorted(sent, key=Message.place)]
    assert ordered == [(0, 1, 1), (0, 1, 2), (1, 0, 0), (3, 0, 0), (2, 1, 0)]


def test_all_are_recorded_when_somebody_waits_for_one(recorded: list[Any]) -> None:
    target, scalar = torch.zeros(2, 3, device="xla"), torch.ones((), device="xla")
    sending, receiving = messages.later([scalar], 1, 2, 0), messages.later([target], 0, 1, 7)
    scalar.fill_(9)
    assert recorded == []
    assert receiving.wait()
    assert recorded == [(0, (0, 1), 7, [[6]]), (0, (1, 2), 0, [[1]]), "start"]
    assert target.tolist() == [[5.0] * 3] * 2
    assert sending.is_completed() and sending.is_success() and sending.exception() is None
    assert [tensor.item() for tensor in sending.result()] == [1.0]  # what it was when it was sent
    assert receiving.get_future().wait()[0] is target
    assert len(recorded) == 3


def test_one_that_nobody_waits_for_is_recorded_when_it_is_dropped(recorded: list[Any]) -> None:
    messages.later([torch.ones(1, device="xla")], 1, 0, 0)
    gc.collect()
    assert recorded == [(1, (0, 1), 0, [[1]]), "start"]


def test_a_batch_is_started_at_its_end(recorded: list[Any]) -> None:
    with messages.batch():
        work = messages.later([torch.ones(1, device="xla")], 0, 1, 0)
        assert recorded == []
    assert recorded == [(0, (0, 1), 0, [[1]]), "start"]
    assert work.wait() and len(recorded) == 2
