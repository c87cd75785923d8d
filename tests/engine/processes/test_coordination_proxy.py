"""The client's connection stays open when the service's is closed, and the client gets an error."""

import socket
import threading

from torch_xla._engine.processes.coordination_proxy import Relay


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
