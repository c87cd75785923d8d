"""Rendezvous of processes through a store that may be older than they are.

`torchrun` restarts processes with the same store, which still contains the entries of the previous ones. So process 0
draws a new name for each attempt, calls every process that it finds by the process's own random name, and waits until
they answer.
"""

import datetime
import importlib.metadata
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .. import config
from ..errors import PeerError
from .heartbeats import Here
from .heartbeats import here as address_here
from .identity import Place
from .mutual_tls import settings as tls_settings

_PREFIX = "torch_xla"
_AWAY = f"{_PREFIX}/away"  # where a process says that it does not come
_PAUSE = 0.02
# So often, in seconds, who waits looks whether one has ended that does not come any more.
_LOOK = 3.0


class Met(NamedTuple):
    """The result of a rendezvous, on which the processes agree."""

    attempt: str  # the word for this start
    address: str  # of the service by which they speak
    everyone: list[Here]


def arrive(store: Any, place: Place, seconds: float, address: Callable[[], str]) -> Met:
    """Announce this process and wait for the others; reject processes that do not belong together.

    Process 0 calls `address` to get that of the service. Raises `PeerError` with the processes that are missing after
    `seconds`.
    """
    own = {
        "name": uuid.uuid4().hex, "here": address_here(), "count": place.count, "versions": _versions(),
        "host": socket.gethostname(), "tls": bool(tls_settings()),
    }  # fmt: skip
    _refuse_twins(store, place, own)
    store.set(f"{_PREFIX}/here/{place.index}", json.dumps(own))
    end = time.monotonic() + seconds
    if place.index == 0:
        attempt = uuid.uuid4().hex
        everyone = _call(store, place, attempt, end, seconds)
        everyone[0] = own
        met: dict[str, Any] = {"address": "", "everyone": [everyone[index] for index in range(place.count)]}
        if _what_differs(0, own, met["everyone"]) is None:
            met["address"] = address()
        store.set(f"{_PREFIX}/met/{attempt}", json.dumps(met))
    else:
        attempt, met = _answer(store, place, own, end, seconds)
    different = _what_differs(place.index, own, met["everyone"])
    if different is not None:
        raise PeerError(different)
    return Met(attempt, met["address"], [Here(*each["here"]) for each in met["everyone"]])


def stay_away(store: Any, place: Place) -> None:
    """Announce that this process ends before the rendezvous, so that the others stop waiting for it."""
    store.set(_AWAY, str(place.index))


def _refuse_absence(store: Any, place: Place) -> None:
    # One key for all: with many processes each look at the store has its price, and one name is enough to begin with.
    if store.check([_AWAY]):
        raise PeerError(
            f"Process {store.get(_AWAY).decode()} of {place.count} ended and did not use the device, which process "
            f"{place.index} cannot do alone: all processes must run the same collectives."
        )


def _refuse_twins(store: Any, place: Place, own: Mapping[str, object]) -> None:
    # A process that was restarted with the same store is already counted there.
    if config.torchrun() is not None or store.add(f"{_PREFIX}/times/{place.index}", 1) == 1:
        return
    other = json.loads(store.get(f"{_PREFIX}/here/{place.index}"))
    raise PeerError(
        f"Process {place.index} of {place.count} is there already (process {other['here'][1]} on {other['host']}), and "
        f"process {os.getpid()} on {own['host']} says that it is the same. Each needs a RANK of its own."
    )


def _call(store: Any, place: Place, attempt: str, end: float, seconds: float) -> dict[int, dict[str, object]]:
    found: dict[int, dict[str, Any]] = {}
    called: dict[int, dict[str, object]] = {}
    looks_at = time.monotonic() + _LOOK
    while True:
        missing = [index for index in range(1, place.count) if index not in found]
        if not missing:
            return found
        for index in missing:
            if not store.check([f"{_PREFIX}/here/{index}"]):
                continue
            other = json.loads(store.get(f"{_PREFIX}/here/{index}"))
            if called.get(index) != other:
                called[index] = other
                store.set(f"{_PREFIX}/call/{other['name']}", attempt)
            if store.check([f"{_PREFIX}/answer/{attempt}/{other['name']}"]):
                found[index] = other
        if time.monotonic() > looks_at:
            _refuse_absence(store, place)
            looks_at = time.monotonic() + _LOOK
        if time.monotonic() > end:
            raise _are_late(place, missing, seconds)
        time.sleep(_PAUSE)


def _answer(
    store: Any, place: Place, own: dict[str, object], end: float, seconds: float
) -> tuple[str, dict[str, object]]:
    call = f"{_PREFIX}/call/{own['name']}"
    try:
        _wait_at(store, place, call, end)
        attempt = store.get(call).decode()
        store.set(f"{_PREFIX}/answer/{attempt}/{own['name']}", "")
        met = f"{_PREFIX}/met/{attempt}"
        _wait_at(store, place, met, max(end, time.monotonic() + 1.0))
    except PeerError:
        raise
    except RuntimeError as error:
        raise missed(store, place, f"{_PREFIX}/here", seconds) from error
    return attempt, json.loads(store.get(met))


def _wait_at(store: Any, place: Place, key: str, end: float) -> None:
    """Wait for `key` until the time `end`. Raise `RuntimeError` if it does not come, or the store is lost."""
    while True:
        left = end - time.monotonic()
        try:
            store.wait([key], datetime.timedelta(seconds=max(0.001, min(left, _LOOK))))
            return
        except RuntimeError:
            if left <= _LOOK:
                raise
        _refuse_absence(store, place)


def missed(store: Any, place: Place, key: str, seconds: float) -> PeerError:
    """Return the error for a wait at a store until all processes have written below `key`."""
    try:
        late = [index for index in range(place.count) if not store.check([f"{key}/{index}"])]
    except RuntimeError:
        return PeerError(
            f"Process {place.index} of {place.count} can no longer reach the store by which the processes find each "
            f"other: the process that keeps it, process 0 or torchrun, ended before all had started, and has said why."
        )
    return _are_late(place, late or [0], seconds)


def _are_late(place: Place, late: list[int], seconds: float) -> PeerError:
    names = ", ".join(map(str, late))
    return PeerError(
        f"Process {place.index} of {place.count} waited {seconds:.0f} s for process{'es' if len(late) > 1 else ''} "
        f"{names} to start. Did it fail, or is the number of processes (WORLD_SIZE) wrong? "
        f"DIST_SERVICE_START_TIMEOUT_IN_SEC sets how long to wait."
    )


def _what_differs(own_index: int, own: dict[str, Any], everyone: list[dict[str, Any]]) -> str | None:
    for index, other in enumerate(everyone):
        if other["count"] != own["count"]:
            return other_count(own_index, own["count"], index, other["count"])
        if other["versions"] != own["versions"]:
            return (
                f"Process {own_index} runs {own['versions']}, and process {index} on {other['host']} runs "
                f"{other['versions']}: install the same versions."
            )
        if other["tls"] != own["tls"]:
            with_it, without = (own_index, index) if own["tls"] else (index, own_index)
            return (
                f"Process {with_it} asks for mutual TLS, and process {without} does not: set the variables "
                f"JAX_MTLS_CERT_FILE, JAX_MTLS_KEY_FILE, JAX_MTLS_CA_FILE and JAX_MTLS_PEER_URI_PREFIX for all."
            )
    return None


def other_count(own_index: int, own: int, index: int, other: int) -> str:
    """Return the message for two processes with different numbers of processes."""
    return f"Process {own_index} is one of {own}, and process {index} one of {other}: give all the same WORLD_SIZE."


def _versions() -> str:
    names = ("torch_xla", "torch", "jax", "jaxlib")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
