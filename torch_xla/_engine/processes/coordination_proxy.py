"""A proxy between this process's client and the coordination service, so that the client never sees it end.

XLA's client ends its process by SIGABRT as soon as its connection breaks, and what it could call instead of that cannot
be given from Python. So it is connected to a socket of this process, which stays open when the one behind it is closed:
then `lost` is called, and what the client asks for is not answered any more.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

_LOOPBACK = "127.0.0.1"
_BYTES = 1 << 16


class Relay:
    """Passes on what goes between one client of this process and the service at `address`.

    `lost(why)` is called from a thread of the relay when the service closes the connection, or when nothing that was
    sent has reached its machine for `seconds`.
    """

    def __init__(self, address: str, seconds: int, lost: Callable[[str], None]) -> None:
        self._lost = lost
        self.is_left = False
        """Whether the client takes leave, so that it is no loss when the service closes the connection."""
        host, _, port = address.rpartition(":")
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
        why = _pass_on(self._service, client)
        if not self.is_left:
            self._lost(why)


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
