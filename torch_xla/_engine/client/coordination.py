"""Finds the other processes of the program, and exchanges small things with them: addresses, names, barriers."""

import atexit
import datetime
import importlib.metadata
import logging
import socket
import sys
import threading
import time
from typing import Any

from .. import config
from ..private import coordination as private
from ..private.c10d import rendezvous
from . import processes

logger = logging.getLogger(__name__)

_PREFIX = "torch_xla"
# A port is chosen and then bound: another program may take it in between.
_ATTEMPTS = 8

_lock = threading.RLock()
_client: Any = None
_round = 0
_failed = False
_service: Any = None  # if the processes speak through this one


class PeerError(RuntimeError):
    """Another process of the program is lost, late, or does something else."""


def connect() -> None:
    """Meets the other processes, once. Raises `PeerError` that names those who do not come in time."""
    global _client
    with _lock:
        if _client is not None or processes.process_count() == 1:
            return
        if private.is_connected():
            raise RuntimeError(
                "jax.distributed.initialize() was called already, and torch_xla starts the processes of its programs "
                "itself: leave that call out."
            )
        place, store = processes.place(), _meeting_place()
        seconds = config.distributed_start_seconds()
        _arrive(store, place, seconds)
        if place.index == 0 and not processes.is_served:
            serve(store, place.address, place.count)
        address, versions = store.get(f"{_PREFIX}/coordinator").decode().split("\n")
        if versions != _versions():
            raise RuntimeError(
                f"Process {place.index} runs {_versions()}, and others run {versions}: install the same versions."
            )
        _client = private.connect(address, place.index, place.count, config.heartbeat_seconds(), seconds)
        private.listen_on("127.0.0.1" if place.is_on_one_machine else _own_address(place.address))
        atexit.register(disconnect)


def _meeting_place() -> Any:
    if processes.meet is not None:
        return processes.meet()
    # The variables of `torchrun` stand for a store that its agent keeps.
    store, _, _ = next(iter(rendezvous("env://")))
    return store


def _arrive(store: Any, place: processes.Place, seconds: int) -> None:
    keys = [f"{_PREFIX}/here/{index}" for index in range(place.count)]
    store.set(keys[place.index], socket.gethostname())
    try:
        store.wait(keys, datetime.timedelta(seconds=seconds))
    except RuntimeError as error:
        late = [str(index) for index, key in enumerate(keys) if not store.check([key])]
        raise PeerError(
            f"Process {place.index} of {place.count} waited {seconds} s for process{'es' if len(late) > 1 else ''} "
            f"{', '.join(late)} to start. Did it fail, or is the number of processes (WORLD_SIZE) wrong? "
            f"DIST_SERVICE_START_TIMEOUT_IN_SEC sets how long to wait."
        ) from error


def serve(store: Any, host: str, count: int) -> Any:
    """Starts the service by which `count` processes speak, at the address `host`, and tells them by `store` where."""
    global _service
    wanted, seconds = config.coordinator_port(), config.distributed_start_seconds()
    address = ""
    for attempt in range(_ATTEMPTS):
        address = f"{host}:{wanted or _free_port(host)}"
        try:
            _service = private.serve(address, count, config.heartbeat_seconds(), seconds)
            break
        except RuntimeError as error:
            if wanted or attempt == _ATTEMPTS - 1:
                raise RuntimeError(
                    f"Cannot listen on {address} ({error}). Another program may use the port: XLA_COORDINATOR_PORT "
                    f"chooses one; unset, a free one is taken."
                ) from error
    store.set(f"{_PREFIX}/coordinator", f"{address}\n{_versions()}")
    return _service


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _own_address(towards: str) -> str:
    """The address of this machine on the way to `towards`; nothing is sent."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 1))
        return str(probe.getsockname()[0])


def _versions() -> str:
    names = ("torch_xla", "torch", "jax", "jaxlib")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def disconnect() -> None:
    """Leaves the other processes. If they speak through this one it waits for them, unless it failed."""
    global _client, _service
    with _lock:
        connection, _client = _client, None
        service, _service = _service, None
        if connection is None or _failed or getattr(sys, "last_value", None) is not None:
            return
        place = processes.place()
        try:
            connection.key_value_set(f"{_PREFIX}/ended/{place.index}", "")
            if service is not None:
                _wait_for_the_others(connection, place)
            private.disconnect()
            if service is not None:
                service.shutdown()
        except RuntimeError as error:
            logger.warning("Process %d could not take leave of the others: %s", place.index, error)


def _wait_for_the_others(connection: Any, place: processes.Place) -> None:
    seconds = 60 * config.shutdown_minutes()
    end = time.monotonic() + seconds
    for index in range(place.count):
        left = max(0.001, end - time.monotonic())
        try:
            connection.blocking_key_value_get(f"{_PREFIX}/ended/{index}", int(1000 * left))
        except RuntimeError:
            logger.warning(
                "Process %d ends, and process %d has not ended within %d s: it can no longer speak with the others.",
                place.index,
                index,
                seconds,
            )
            return


def note_exception() -> None:
    """Says that this process ends by an exception: it then leaves without waiting, which the others notice."""
    global _failed
    _failed = True


def client() -> Any:
    """The connection to the others; meets them first."""
    connect()
    return _client


def exchange(tag: str, payload: bytes) -> list[bytes]:
    """Waits until every process calls this, and returns what each brought, in the order of their indices.

    Raises `PeerError` if one calls it with another `tag`, or does not come in time.
    """
    global _round
    place = processes.place()
    if place.count == 1:
        return [payload]
    connection = client()
    with _lock:
        _round += 1
        here = f"{_PREFIX}/exchange/{_round}"
        seconds = config.rendezvous_seconds()
        connection.key_value_set_bytes(f"{here}/{place.index}", tag.encode() + b"\0" + payload)
        brought = _collect(connection, here, place, tag, seconds)
        # When all have come to this round, all have read the last.
        connection.key_value_delete(f"{_PREFIX}/exchange/{_round - 1}/{place.index}")
    for index, (other, _) in enumerate(brought):
        if other != tag:
            raise PeerError(
                f"Process {place.index} waits for the others at {tag!r}, and process {index} at {other!r}: every "
                f"process must come to the same places in the same order."
            )
    return [data for _, data in brought]


def _collect(connection: Any, here: str, place: processes.Place, tag: str, seconds: float) -> list[tuple[str, bytes]]:
    brought: list[tuple[str, bytes]] = []
    end = time.monotonic() + seconds
    for index in range(place.count):
        left = max(0.0, end - time.monotonic())
        try:
            found = connection.blocking_key_value_get_bytes(f"{here}/{index}", max(1, int(1000 * left)))
        except Exception as error:
            raise PeerError(_absence(index, place, tag, seconds, error)) from error
        name, _, data = found.partition(b"\0")
        brought.append((name.decode(), data))
    return brought


def _absence(index: int, place: processes.Place, tag: str, seconds: float, error: Exception) -> str:
    if "DEADLINE" not in str(error):
        return (
            f"Process {place.index} waited for process {index} at {tag!r}, and can no longer reach the others: {error}"
        )
    return (
        f"Process {place.index} of {place.count} waited {seconds:.0f} s for process {index} at {tag!r}, which did not "
        f"come. XLA_RENDEZVOUS_TIMEOUT sets how long to wait."
    )
