"""A socket that listens on every address is restricted to this machine."""

import os
import socket
from contextlib import closing

import pytest

from torch_xla._engine.diagnostics.profiles import listening


def test_the_sockets_that_began_to_listen_are_restricted() -> None:
    other = socket.create_server(("", 0))
    before = listening.sockets(0)
    with closing(other), socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        new = listening.sockets(port) - before
        assert new == {os.readlink(f"/proc/self/fd/{server.fileno()}")}
        listening.restrict(new)
        assert server.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16) == b"lo\0"
        assert not other.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            pass
    with pytest.raises(OSError, match="^the socket on which it listens was not found$"):
        listening.restrict(new)
