"""The process of the service finds a free port, and sees whether a process is connected."""

import socket
import subprocess
import sys

import pytest

from torch_xla._engine.compat.names import jax_coordination_server as service


def test_a_free_port_is_found_and_one_that_is_taken_refused() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for left in reversed(range(8)):
            port = service._free_port("127.0.0.1", 0)
            assert port
            try:
                assert service._free_port("127.0.0.1", port) == port
                taken.bind(("127.0.0.1", port))
                break
            except OSError:  # another program has taken it meanwhile
                assert left
        with pytest.raises(OSError, match="in use"):
            service._free_port("127.0.0.1", port)


def test_whether_somebody_is_connected_is_seen() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not service._is_used(port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            assert service._is_used(port)
            accepted.close()
            client.close()
        assert not service._is_used(port)


def test_it_says_why_it_cannot_listen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, service.__file__, "127.0.0.1", str(port), "1", "100", "5", "{}"],
            cwd="/", input="", capture_output=True, text=True,
        )  # fmt: skip
    assert done.stdout.startswith(f"error 127.0.0.1:{port}: ") and done.returncode == 0
