"""The service by which processes speak, in this process, with a connection for each whose part a thread plays."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxlib import _jax


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Return the results or errors of the calls, each in a separate thread."""
    found: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            found[place] = calls[place]()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _served(count: int) -> tuple[str, Any]:
    for left in reversed(range(8)):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        try:
            service = _jax.get_distributed_runtime_service(
                address, count, heartbeat_timeout=1000, cluster_register_timeout=200, recoverable=True
            )
            return address, service
        except RuntimeError:  # another program has taken the port meanwhile
            if not left:
                raise
    raise AssertionError


@contextmanager
def connections(count: int) -> Iterator[list[Any]]:
    """Yield the connections of `count` processes."""
    address, service = _served(count)
    made = [
        _jax.get_distributed_runtime_client(
            address, index, init_timeout=200, heartbeat_timeout=1000, shutdown_on_destruction=False
        )
        for index in range(count)
    ]
    together([each.connect for each in made])
    try:
        yield made
    finally:
        together([each.shutdown for each in made])
        service.shutdown()
