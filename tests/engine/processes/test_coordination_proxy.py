"""The client's connection stays open when the service's is closed, and the client gets an error."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from torch_xla._engine.processes.coordination_proxy import Client, Relay


def connected(seconds: int = 60) -> tuple[Relay, socket.socket, socket.socket, threading.Event, list[str]]:
    """A relay with its two ends, and what it says."""
    said: list[str] = []
    is_told = threading.Event()

    def lost(why: str) -> None:
        said.append(why)
        is_told.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        relay = Relay(f"127.0.0.1:{server.getsockname()[1]}", seconds, lost)
        service, _ = server.accept()
    host, _, port = relay.address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=seconds)
    service.settimeout(seconds)
    return relay, client, service, is_told, said


def received(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += end.recv(count - len(data))
    return data


def test_what_is_sent_arrives_both_ways() -> None:
    relay, client, service, is_told, _ = connected()
    with client, service:
        large = bytes(range(256)) * 4096
        sender = threading.Thread(target=client.sendall, args=(large,))
        sender.start()
        assert received(service, len(large)) == large
        sender.join()
        service.sendall(b"answer")
        assert received(client, 6) == b"answer"
        assert not is_told.is_set()
        relay.close()


def test_the_client_stays_connected_when_the_service_goes() -> None:
    relay, client, service, is_told, said = connected()
    with client:
        service.close()
        assert is_told.wait(60) and said == ["it closed the connection"]
        client.settimeout(0.2)
        try:
            assert client.recv(1) != b"", "the client's connection was closed"
        except TimeoutError:
            pass
        relay.close()


def test_nothing_is_told_of_a_service_that_was_left() -> None:
    relay, client, service, is_told, _ = connected()
    with client:
        relay.is_left = True
        service.close()
        assert not is_told.wait(0.3)
        relay.close()


def test_one_client_is_let_in() -> None:
    relay, client, service, _, _ = connected()
    with client, service:
        client.sendall(b"x")
        assert received(service, 1) == b"x"  # so the door is behind it
        host, _, port = relay.address.rpartition(":")
        with socket.socket() as other:
            assert other.connect_ex((host, int(port))) != 0
        relay.close()


class Asked:
    """A client: one method answers, one raises, one waits as XLA's does when no answer comes."""

    def __init__(self) -> None:
        self.is_asked, self.may_end = threading.Event(), threading.Event()

    def answer(self, key: str, *, more: int) -> tuple[str, int]:
        return key, more

    def refuse(self) -> None:
        raise RuntimeError("DEADLINE")

    def wait(self) -> None:
        self.is_asked.set()
        assert self.may_end.wait(60)


def raised(call: Callable[[], object], found: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:
        found.append(error)


def test_who_waits_for_an_answer_raises_when_the_service_goes() -> None:
    relay, end, service, is_told, _ = connected()
    asked, found = Asked(), list[Any]()
    client = Client(asked, relay, lambda: ConnectionError("gone"), 60)
    assert client.answer("key", more=2) == ("key", 2)
    with pytest.raises(RuntimeError, match="DEADLINE"):
        client.refuse()
    with end:
        waits = threading.Thread(target=raised, args=(client.wait, found))
        waits.start()
        assert asked.is_asked.wait(60)
        assert client.answer("beside", more=0) == ("beside", 0)  # of another thread
        service.close()
        waits.join(60)
        assert is_told.is_set() and [str(each) for each in found] == ["gone"]
        with pytest.raises(ConnectionError, match="gone"):
            client.answer("later", more=0)
        asked.may_end.set()
        relay.close()


def test_a_service_that_does_not_answer_is_lost() -> None:
    relay, end, service, is_told, why = connected()
    asked = Asked()
    client = Client(asked, relay, lambda: ConnectionError(why[0]), 1)
    with end, service:
        with pytest.raises(ConnectionError, match="it has not answered for 1 s"):
            client.wait()
        assert is_told.is_set()
        with pytest.raises(ConnectionError, match="not answered"):
            client.wait_for(asked.wait)
        asked.may_end.set()
        relay.close()
    assert why == ["it has not answered for 1 s"]


def test_what_may_take_long_is_waited_for() -> None:
    relay, end, service, is_told, _ = connected()
    asked, found = Asked(), list[BaseException]()
    client = Client(asked, relay, lambda: ConnectionError("gone"), 1)
    with end, service:
        waits = threading.Thread(target=raised, args=(lambda: client.wait_for(asked.wait), found))
        waits.start()
        waits.join(3)
        assert waits.is_alive() and not is_told.is_set()
        asked.may_end.set()
        waits.join(60)
        assert not waits.is_alive() and not found
        relay.close()
