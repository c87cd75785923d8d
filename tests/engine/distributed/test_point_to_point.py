"""Messages of a batch are recorded in one order on both ends."""

from typing import Any

import pytest
import torch

from torch_xla._engine.distributed import point_to_point
from torch_xla._engine.distributed.point_to_point import Message
from torch_xla._engine.processes import identity


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the recordings of process 1 of 4: root, pair, tag and sizes of each message, and the starts."""
    found: list[Any] = []

    def broadcast(tensors: list[torch.Tensor], root: int, groups: Any, tag: int) -> list[torch.Tensor]:
        found.append((root, groups, tag, [list(tensor.shape) for tensor in tensors]))
        return [tensor + 5 for tensor in tensors]

    monkeypatch.setattr(identity, "process_index", lambda: 1)
    monkeypatch.setattr(point_to_point, "pair_groups", lambda first, second: (first, second))
    monkeypatch.setattr(point_to_point, "broadcast_values", broadcast)
    monkeypatch.setattr(point_to_point, "start_collectives", lambda: found.append("start"))
    return found


def test_messages_of_both_ends_have_one_order() -> None:
    sent = [Message([], *each) for each in ((1, 0, 0), (0, 1, 2), (3, 0, 0), (0, 1, 1), (2, 1, 0))]
    ordered = [(each.sender, each.receiver, each.tag) for each in sorted(sent, key=Message.place)]
    assert ordered == [(0, 1, 1), (0, 1, 2), (1, 0, 0), (3, 0, 0), (2, 1, 0)]


def test_one_is_recorded_where_it_is_called_for(recorded: list[Any]) -> None:
    target, scalar = torch.zeros(2, 3, device="xla"), torch.ones((), device="xla")
    assert point_to_point.exchange([scalar], 1, 2, 0).wait()
    assert recorded == [(0, (1, 2), 0, [[1]]), "start"]
    assert point_to_point.exchange([target], 0, 1, 7).wait()
    assert recorded[2:] == [(0, (0, 1), 7, [[6]])]
    assert target.tolist() == [[5.0] * 3] * 2


def test_those_of_a_batch_are_recorded_together(recorded: list[Any]) -> None:
    target, scalar = torch.zeros(2, 3, device="xla"), torch.ones((), device="xla")
    with point_to_point.batch():
        sending, receiving = point_to_point.exchange([scalar], 1, 2, 0), point_to_point.exchange([target], 0, 1, 7)
        scalar.fill_(9)
        assert recorded == []
    assert recorded == [(0, (0, 1), 7, [[6]]), (0, (1, 2), 0, [[1]]), "start", "start"]
    assert sending.is_completed() and sending.is_success() and sending.exception() is None
    assert [tensor.item() for tensor in sending.result()] == [1.0]  # what it was when it was sent
    assert receiving.get_future().wait()[0] is target
    assert target.tolist() == [[5.0] * 3] * 2 and len(recorded) == 4


def test_a_batch_is_started_at_its_end(recorded: list[Any]) -> None:
    with point_to_point.batch():
        work = point_to_point.exchange([torch.ones(1, device="xla")], 0, 1, 0)
        assert recorded == []
    assert recorded == [(0, (0, 1), 0, [[1]]), "start"]
    assert work.wait() and len(recorded) == 2
