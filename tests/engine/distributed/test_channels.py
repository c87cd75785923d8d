"""The two processes of a channel."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from torch_xla._engine.distributed import channels
from torch_xla._engine.errors import PeerError
from torch_xla._engine.processes import coordination, identity


class Service:
    """The messages between the processes of a program, seen from process 2."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.asked: list[str] = []

    def key_value_set(self, key: str, value: str) -> None:
        self.told[key] = value


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    found = Service()
    monkeypatch.setattr(identity, "process_index", lambda: 2)
    monkeypatch.setattr(identity, "process_count", lambda: 4)
    monkeypatch.setattr(coordination, "client", lambda: found)
    channels.partners.cache_clear()
    yield found
    channels.partners.cache_clear()


def answering(service: Service, answer: str | type[Exception]) -> Callable[..., str]:
    def awaited_of(whom: Sequence[int], key: str, seconds: float, what: str) -> str:
        assert list(whom) == [0, 1, 3] and what.endswith(f"channel {key.split('/')[1]}")
        service.asked.append(key)
        if isinstance(answer, str):
            return answer
        raise answer(key)

    return awaited_of


def test_both_ends_know_sender_and_receiver(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "awaited_of", answering(service, "5"))
    assert channels.partners(7, sends=True) == (2, 5) and channels.partners(7, sends=False) == (5, 2)
    assert service.told == {"torch_xla/channel/7/sender": "2", "torch_xla/channel/7/receiver": "2"}
    assert service.asked == ["channel/7/receiver", "channel/7/sender"]
    channels.partners(7, sends=True)
    assert len(service.asked) == 2  # known


def test_who_waits_in_vain_is_told_for_what(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "awaited_of", answering(service, TimeoutError))
    with pytest.raises(PeerError, match=r"Process 2 waited .* s for another to receive on channel 3\."):
        channels.partners(3, sends=True)
    with pytest.raises(PeerError, match="to send on channel 3"):
        channels.partners(3, sends=False)


def test_a_program_of_one_process_has_no_channels() -> None:
    channels.partners.cache_clear()
    with pytest.raises(RuntimeError, match="channel 1 needs two processes, and this program has one"):
        channels.partners(1, sends=True)
