"""Processes exchange small things and meet at one place after the other, played by threads over the real service."""

import errno
import os
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from tests.support.key_value import connections
from torch_xla._engine.errors import PeerError
from torch_xla._engine.processes import coordination, heartbeats, identity
from torch_xla._engine.processes.identity import Place


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the connection of process 1 of two; this is process 0."""
    with connections(2) as (own, other):
        monkeypatch.setattr(identity, "_place", Place(0, 2))
        monkeypatch.setattr(coordination, "_client", own)
        monkeypatch.setattr(coordination, "_round", 0)
        monkeypatch.setattr(heartbeats, "current", None)
        yield other


def brings(other: Any, rounds: int, tag: str, payload: bytes) -> None:
    other.key_value_set_bytes(f"torch_xla/exchange/{rounds}/1", tag.encode() + b"\0" + payload)


def test_who_is_alone_has_what_it_brought() -> None:
    assert coordination.exchange("tag", b"mine") == [b"mine"]


def test_each_gets_what_all_have_brought_in_their_order(other: Any) -> None:
    brings(other, 1, "names", b"\0\xff1")
    assert coordination.exchange("names", b"0") == [b"0", b"\0\xff1"]
    threading.Timer(0.05, brings, (other, 2, "names", b"")).start()
    assert coordination.exchange("names", b"again") == [b"again", b""]
    left = other.key_value_dir_get_bytes("torch_xla/exchange/")
    assert [key for key, _ in left if key.endswith("/0")] == ["torch_xla/exchange/2/0"]  # the first round is forgotten


def test_who_comes_to_another_place_is_told(other: Any) -> None:
    brings(other, 1, "save", b"")
    with pytest.raises(PeerError, match="^Process 0 waits for the others at 'load', and process 1 at 'save': every"):
        coordination.exchange("load", b"")


def test_who_does_not_come_is_named(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination.config, "rendezvous_seconds", lambda: 0.2)
    with pytest.raises(
        PeerError, match="^Process 0 of 2 waited 0 s for process 1 at 'here', which did not come. XLA_REND"
    ):
        coordination.exchange("here", b"")


def test_a_key_is_waited_for_until_it_comes_or_time_is_over(other: Any) -> None:
    threading.Timer(0.05, other.key_value_set_bytes, ("torch_xla/late", b"there")).start()
    assert coordination.awaited("late", 20) == b"there"
    with pytest.raises(TimeoutError, match="^nothing came within 0 s$"):
        coordination.awaited("never", 0.05)


def test_a_fault_that_one_declares_ends_the_wait(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = heartbeats.here()
    watch = heartbeats.Watch(None, Place(0, 2), [here, here], False)
    monkeypatch.setattr(heartbeats, "current", watch)
    threading.Timer(0.05, watch.cut, ("Process 1 of 2 is gone.",)).start()
    with pytest.raises(PeerError, match="^Process 1 of 2 is gone."):
        coordination.awaited("never", 20)


@pytest.fixture
def both(other: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[heartbeats.Watch, heartbeats.Watch]]:
    """This process's part in watching over two, and that of process 1."""
    everyone = [heartbeats.Here(f"machine {index}", 1) for index in range(2)]
    own = heartbeats.Watch(coordination._client, Place(0, 2), everyone, False)
    its = heartbeats.Watch(other, Place(1, 2), everyone, False)
    monkeypatch.setattr(heartbeats, "current", own)
    monkeypatch.setattr(coordination, "_come", [])
    for watch in (own, its):
        watch.start()
    yield own, its
    for watch in (own, its):
        watch.end()
        os.close(watch._bell)
        os.close(watch._ring)


def test_what_all_do_together_begins_when_the_last_has_come(both: tuple[heartbeats.Watch, heartbeats.Watch]) -> None:
    def comes() -> None:
        if both[1].next_number("come/begin") == 2:
            both[1].propose("all/begin", "")

    threading.Timer(0.05, comes).start()
    coordination.all_come("begin")
    assert not both[0].fault


def test_who_does_not_come_to_do_it_is_named_to_all(
    both: tuple[heartbeats.Watch, heartbeats.Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination.config, "collective_seconds", lambda: 0.2)
    monkeypatch.setattr(heartbeats, "about", [lambda: {"come": []}])
    with pytest.raises(PeerError, match="^Process 0 of 2 waited 0 s for process 1 to begin, which all do together"):
        coordination.all_come("begin")
    assert both[1].has_fault.wait(60) and "Process 1 is before its first program" in both[1].fault


def test_who_ends_and_did_not_do_it_is_named_to_those_that_wait(
    both: tuple[heartbeats.Watch, heartbeats.Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "_LOOK", 0.1)
    both[1].end()
    with pytest.raises(PeerError, match="^Process 1 ended and did not begin, which all do together."):
        coordination.all_come("begin")


def test_who_ends_and_does_not_come_to_a_rendezvous_is_named_to_those_that_wait(
    both: tuple[heartbeats.Watch, heartbeats.Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "_LOOK", 0.1)
    both[1].end()
    with pytest.raises(PeerError, match="^Process 1 of 2 ended and did not come to 'later', where others wait."):
        coordination.exchange("later", b"")


def test_what_one_brought_before_it_ended_is_there(
    other: Any, both: tuple[heartbeats.Watch, heartbeats.Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "_LOOK", 0.1)
    real = both[0].ended

    def ends() -> list[int]:
        brings(other, 1, "last", b"word")
        both[1].end()
        return real()

    monkeypatch.setattr(both[0], "ended", ends)
    assert coordination.exchange("last", b"") == [b"", b"word"]
    assert not both[0].fault


def test_where_jax_has_met_the_others_already_it_is_told_to_leave_that_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_place", Place(0, 2))
    monkeypatch.setattr(coordination.private, "is_connected", lambda: True)
    with pytest.raises(RuntimeError, match=r"^jax.distributed.initialize\(\) was called already"):
        coordination.client()


def test_a_process_that_met_nobody_leaves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "_failed", None)
    coordination.disconnect()
    coordination.note_exception(ValueError("why"))
    assert coordination._client is None


@pytest.mark.parametrize("is_fork", [True, False])
def test_a_process_that_leaves_before_it_has_met_the_others_says_so(
    is_fork: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HashStore()
    monkeypatch.setattr(coordination, "_failed", None)
    monkeypatch.setattr(coordination, "_is_away", False)
    monkeypatch.setattr(heartbeats, "current", None)
    meeting = identity.Meeting(lambda: store, False, os.getpid() + is_fork)
    for name, value in (("_place", Place(1, 2)), ("_meeting", meeting)):
        monkeypatch.setattr(identity, name, value)
    coordination.disconnect()
    assert store.check(["torch_xla/away"]) is not is_fork


def test_a_farewell_says_where_the_program_failed() -> None:
    watch: Any = heartbeats.Watch(None, Place(1, 2), [heartbeats.here()] * 2, False)
    watch.step = 7
    try:
        raise ValueError("no such file")
    except ValueError as error:
        said = coordination._farewell(watch, error)
    assert said.startswith("Process 1 of 2 ended by an exception") and said.endswith("ValueError: no such file")
    assert ", after step 7:\n" in said and "test_coordination.py" in said


def test_the_address_of_this_machine_is_one_that_others_reach() -> None:
    assert coordination._own_address("127.0.0.1") == "127.0.0.1"


def test_the_service_listens_on_the_addresses_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    # `torchrun` sets the address of a network even where all processes are on one machine.
    here, several = Place(0, 2, 0, 2, 0, "10.1.2.3"), Place(0, 4, 0, 2, 0, "127.0.0.2")
    asked: list[tuple[str, int]] = []

    def serve(host: str, count: int) -> Any:
        asked.append((host, count))
        return SimpleNamespace(address=f"{host}:1")

    with monkeypatch.context() as patch:
        patch.setattr(coordination, "serve", serve)
        assert coordination._address(None, here) == "127.0.0.1:1"
        assert coordination._address(None, several) == "127.0.0.2:1"
    assert asked == [("127.0.0.1", 2), ("127.0.0.2", 4)]
    service = coordination.serve(several.address, several.count)
    try:
        host, _, port = service.address.rpartition(":")
        assert host == several.address
        with socket.create_connection((host, int(port)), timeout=60):
            pass
        with socket.socket() as other:
            assert other.connect_ex(("127.0.0.1", int(port))) == errno.ECONNREFUSED
    finally:
        monkeypatch.setattr(coordination, "_service", None)
        service.shutdown()
