"""A proxy between this process's client and the coordination service, so that the client never sees it end.

XLA's client ends its process by SIGABRT as soon as its connection breaks, and what it could call instead of that cannot
be given from Python. So it is connected to a socket of this process, which stays open when the one behind it is closed:
then `lost` is called, and what the client asks for is not answered any more. The client would wait for the answer for
ever, in C++. So threads ask, and the caller, which waits for its thread, raises an error when the service is lost.
"""

import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

_LOOPBACK = "127.0.0.1"
# Methods that end by themselves after the time that they are given, even if the service does not answer.
_TIMED = {"blocking_key_value_get", "blocking_key_value_get_bytes", "wait_at_barrier"}
# The threads of a process that ask at the same time: the program's, and those of the heartbeats. They are started
# ahead, because no thread can be started when the interpreter ends.
_ASKERS = 3
_BYTES = 1 << 16


class Relay:
    """Passes on what goes between one client of this process and the service at `address`.

    `lost(why)` is called when the service closes the connection, or when nothing that was sent has reached its machine
    for `seconds`; after it, the calls of `Client` that wait raise.
    """

    def __init__(self, address: str, seconds: int, lost: Callable[[str], None]) -> None:
        self._lost = lost
        self.is_left = False
        """Whether the client takes leave, so that it is no loss when the service closes the connection."""
        host, _, port = address.rpartition(":")
        self.is_lost = False
        """Whether nothing is answered any more."""
        self.waiting: set[threading.Event] = set()
        """Set when nothing is answered any more."""
        self._service = socket.create_connection((host, int(port)), timeout=seconds)
        self._service.settimeout(None)
        self._service.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_silence(self._service, seconds)
        self._door = socket.create_server((_LOOPBACK, 0), backlog=1)
        self.address = f"{_LOOPBACK}:{self._door.getsockname()[1]}"
        """Where the client finds it."""
        self._client: socket.socket | None = None
        threading.Thread(target=self._serve, name="torch_xla-relay", daemon=True).start()

    def close(self) -> None:
        """Close both connections, because one of them has ended."""
        self.is_left = True
        for each in (self._client, self._service, self._door):
            if each is not None:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
                each.close()

    def _serve(self) -> None:
        try:
            self._client, _ = self._door.accept()
        except OSError:
            return  # it was closed before anybody came
        client = self._client
        self._door.close()  # one client; no other process of this machine can connect
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        outward = (client, self._service)
        threading.Thread(target=_pass_on, args=outward, name="torch_xla-relay-out", daemon=True).start()
        self.lose(_pass_on(self._service, client))

    def lose(self, why: str) -> None:
        """Give the service up, and wake who waits for it."""
        if self.is_lost:
            return
        self.is_lost = True
        if not self.is_left:
            self._lost(why)
        for each in list(self.waiting):
            each.set()


class _Call:
    """A question to the service, and its answer."""

    def __init__(self, method: Callable[[], object]) -> None:
        self.method = method
        self.done = threading.Event()
        self.has_ended = False
        self.result: object = None
        self.error: Exception | None = None


class _Asker:
    """A thread that asks for one thing after the other."""

    def __init__(self, idle: "list[_Asker]") -> None:
        self.calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._idle = idle
        threading.Thread(target=self._run, name="torch_xla-asker", daemon=True).start()

    def _run(self) -> None:
        while True:
            call = self.calls.get()
            try:
                call.result = call.method()
            except Exception as error:  # the caller raises it
                call.error = error
            call.has_ended = True
            self._idle.append(self)
            call.done.set()
            del call


class Client:
    """A client behind a relay: its methods raise `lost()` when the service is lost before the answer has come.

    A service that does not answer for `seconds`, as one that was stopped, is lost, too.
    """

    def __init__(self, client: object, relay: Relay, lost: Callable[[], Exception], seconds: int) -> None:
        self._client, self._relay, self._lost, self._seconds = client, relay, lost, seconds
        self._idle: list[_Asker] = []
        self._idle += [_Asker(self._idle) for _ in range(_ASKERS)]

    def __getattr__(self, name: str) -> Any:
        return partial(self._ask, getattr(self._client, name), None if name in _TIMED else self._seconds)

    def wait_for(self, method: Callable[[], object]) -> None:
        """Call `method`, which asks the service for what may take long."""
        self._ask(method, None)

    def _ask(self, method: Callable[..., object], seconds: int | None, /, *args: object, **kwargs: object) -> object:
        call = _Call(partial(method, *args, **kwargs))
        self._relay.waiting.add(call.done)
        try:
            if self._relay.is_lost:
                raise self._lost()
            try:
                asker = self._idle.pop()
            except IndexError:
                asker = _Asker(self._idle)
            asker.calls.put(call)
            if not _comes(call.done, seconds):
                self._relay.lose(f"it has not answered for {seconds} s")
        finally:
            self._relay.waiting.discard(call.done)
        if not call.has_ended:
            raise self._lost()
        if call.error is not None:
            raise call.error
        return call.result


def _comes(event: threading.Event, seconds: int | None) -> bool:
    """Wait for an event; return whether it comes within `seconds`, in which this process is not stopped."""
    if seconds is None:
        return event.wait()
    return any(event.wait(1) for _ in range(seconds))


def _pass_on(source: socket.socket, target: socket.socket) -> str:
    """Copy from one connection to the other until one of them is closed; return the reason."""
    room = memoryview(bytearray(_BYTES))
    try:
        while True:
            count = source.recv_into(room)
            if not count:
                return "it closed the connection"
            target.sendall(room[:count])
    except OSError as error:
        return error.strerror or str(error)


def _notice_silence(connection: socket.socket, seconds: int) -> None:
    """Close the connection when the machine at its other end does not answer for so long."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(1, seconds // 2)), ("TCP_KEEPINTVL", max(1, seconds // 8)), ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 1000 * seconds),
    ):  # fmt: skip
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
