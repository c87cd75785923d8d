"""Restrict a server of this process to clients on the same machine, where its library listens on every address."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

# The state of a listening socket in the tables of /proc.
_LISTENS = "0A"


def sockets(port: int) -> set[str]:
    """Return the sockets of this machine that listen on `port`, or on any port if it is 0."""
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with suppress(FileNotFoundError), open(table) as lines:
            for fields in map(str.split, lines):
                if fields[3] == _LISTENS and (not port or fields[1].endswith(f":{port:04X}")):
                    found.add(f"socket:[{fields[9]}]")
    return found


def _descriptors(of: set[str]) -> Iterator[int]:
    """Yield the file descriptors of this process for these sockets."""
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with suppress(FileNotFoundError):  # the descriptor of this listing is closed by now
            if os.readlink(f"/proc/self/fd/{name}") in of:
                yield int(name)


def restrict(new: set[str]) -> None:
    """Let these sockets of this process accept connections from this machine alone.

    Raises `OSError` if the system does not allow it.
    """
    found = list(_descriptors(new))
    if not found:
        raise OSError("the socket on which it listens was not found")
    for descriptor in found:
        with closing(socket.socket(fileno=os.dup(descriptor))) as server:
            # Linux from 5.7 on lets every user do so. What is sent to 127.0.0.1 and ::1 comes by this device.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
