"""Find the other processes of the program, and exchange addresses, names and barriers with them."""

import logging
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import util
from typing import Any

from .. import config
from ..atomic import lock
from ..compat.names import jax_coordination as private
from ..compat.names.torch_distributed import rendezvous
from ..errors import PeerError
from ..metrics import accounts, user_lines
from .coordination_proxy import Client, Relay
from .heartbeats import Watch
from .heartbeats import about as about_process
from .heartbeats import begin as begin_heartbeats
from .heartbeats import check as check_heartbeats
from .heartbeats import cut as cut_heartbeats
from .heartbeats import watch as current_watch
from .identity import Place, is_served, meeting, process_count
from .identity import place as own_place
from .mutual_tls import check as check_tls
from .mutual_tls import settings as tls_settings
from .store_rendezvous import arrive, stay_away

logger = logging.getLogger(__name__)

_PREFIX = "torch_xla"
# The seconds that a process waits for another one before it checks whether one has failed.
_SLICE = 0.5
# The seconds after which it checks whether one has ended.
_LOOK = 5.0
# A service is lost if it does not answer for this multiple of the limit of a silent process: it answers all of them.
_UNANSWERED = 3

_lock = lock()
_client: Client | None = None
_relay: Relay | None = None
_round = 0
_failed: BaseException | None = None
_pid = os.getpid()
_attempt = ""
_service: private.Service | None = None  # if this process has started it
_is_away = False  # this process has said that it does not come to meet the others
_come: list[str] = []  # what this process has come to, of that to which all must

# Called before a process leaves the others, which may wait for its part of a collective.
before_leaving: list[Callable[[], None]] = []
# Whether such a call failed after the exit code was decided.
has_failed_at_end = False


def connect() -> None:
    """Meet the other processes, once. Raise `PeerError` with the processes that do not come in time."""
    global _client, _relay, _attempt
    with _lock:
        if _client is not None or process_count() == 1:
            return
        if private.is_connected():
            raise RuntimeError(
                "jax.distributed.initialize() was called already, and torch_xla starts the processes of its programs "
                "itself: leave that call out."
            )
        place, store = own_place(), _meeting_place()
        seconds = config.distributed_start_seconds()
        certificates = tls_settings()
        met = arrive(store, place, seconds, lambda: _address(store, place))
        _attempt = met.attempt
        address, everyone = met.address, met.everyone
        if certificates:
            check_tls(address, certificates, seconds)
        _relay = Relay(address, config.heartbeat_seconds(), partial(_lost, address))
        connected = private.connect(_relay.address, place.index, place.count, seconds)
        _client = Client(connected, _relay, partial(_loss, address), _UNANSWERED * config.heartbeat_seconds())
        private.listen_on("127.0.0.1" if place.is_on_one_machine else _own_address(place.address))
        started_by_us = is_served() or config.torchrun() is not None
        begin_heartbeats(_client, place, everyone, started_by_us)


def _lost(address: str, why: str) -> None:
    cut_heartbeats(
        f"The service at {address}, by which the processes of the program speak, is gone: {why}. Its process was "
        f"ended, or its machine, which is that of process 0, is lost."
    )


def _loss(address: str) -> PeerError:
    """Return the error of a call that the lost service does not answer."""
    watch = current_watch()
    if watch is not None and watch.fault:
        return watch.error()
    return PeerError(f"The service at {address}, by which the processes of the program speak, is gone.")


def _meeting_place() -> object:
    if (found := meeting()) is not None:
        return found.store()
    # The variables of `torchrun` refer to a store in its agent.
    store, _, _ = next(iter(rendezvous("env://")))
    return store


def _address(store: Any, place: Place) -> str:
    """Return the address of the coordination service. Process 0 starts the service if it is not running."""
    if is_served():
        return str(store.get(f"{_PREFIX}/coordinator").decode())
    # Under `torchrun` the address may be that of a network although all processes are here.
    return serve("127.0.0.1" if place.is_on_one_machine else place.address, place.count).address


def attempt() -> str:
    """Return a word for this start of the program: another one for each that finds the same store. Meets the others
    first.
    """
    connect()
    return _attempt


def serve(host: str, count: int) -> private.Service:
    """Start the coordination service for `count` processes at the address `host`."""
    global _service
    wanted = config.coordinator_port()
    tls_settings()
    try:
        _service = private.Service(host, wanted, count, config.distributed_start_seconds())
    except RuntimeError as error:
        raise RuntimeError(
            f"Cannot listen on {error}. Another program may use the port, one that was left behind perhaps: "
            f"XLA_COORDINATOR_PORT chooses one; unset, a free one is taken."
        ) from error
    return _service


def tell_address(store: Any, service: private.Service) -> None:
    """Publish in `store` the address of the `service` that was started for others."""
    store.set(f"{_PREFIX}/coordinator", service.address)


def _own_address(towards: str) -> str:
    """Return the address of this machine on the way to `towards`; nothing is sent."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 1))
        return str(probe.getsockname()[0])


def leave() -> None:
    """End this process's part in the program, as its last action."""
    global has_failed_at_end
    if os.getpid() != _pid:
        return  # a fork, which is none of the processes
    try:
        finish()
    except BaseException as error:
        has_failed_at_end = True
        note_exception(error)
        raise  # Python prints it
    disconnect()


def _leave_fork() -> None:
    try:
        leave()
    finally:
        if has_failed_at_end:
            traceback.print_exc()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(1)  # its exit code can no longer be changed


def leave_at_end_of_fork() -> None:
    """Let this process, which `multiprocessing` forked, leave the others at its end: it runs no exit functions."""
    global _pid
    _pid = os.getpid()
    util.Finalize(None, _leave_fork, exitpriority=0)


def finish() -> None:
    """Run the work of this process that the others may wait for, unless it has failed."""
    watch = current_watch()
    if process_count() == 1 or _error() is not None or (watch is not None and watch.fault):
        return
    for call in before_leaving:
        call()


def _error() -> BaseException | None:
    return _failed or getattr(sys, "last_value", None)


def disconnect() -> None:
    """Leave the other processes; say why, if this one has failed."""
    global _client, _service
    with _lock:
        connection, _client = _client, None
        service, _service = _service, None
        watch = current_watch()
        if connection is None or watch is None:
            _leave_before_meeting()
            return
        error = _error()
        watch.end(_farewell(watch, error) if error is not None else "")
        if _relay is not None:
            _relay.is_left = True
        if error is None and not watch.is_cut:
            try:
                connection.wait_for(private.disconnect)
            except RuntimeError as refused:
                logger.warning("Process %d could not take leave of the others: %s", watch.place.index, refused)
        if service is not None:
            service.shutdown()


def _leave_before_meeting() -> None:
    """Announce in the store, if there is one, that this process will not meet the others."""
    global _is_away
    found = meeting()
    if current_watch() is None and found is not None and found.pid == os.getpid() and not _is_away:
        _is_away = True
        with suppress(RuntimeError):  # the process with the store has ended, so no process waits there
            stay_away(found.store(), own_place())


def _farewell(watch: Watch, error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if user_lines.belongs_to_user(frame.filename)]
    where = f" at {users[-1].filename}:{users[-1].lineno} in {users[-1].name}" if users else ""
    said = "".join(traceback.format_exception_only(error)).strip()
    return (
        f"Process {watch.place.index} of {watch.place.count} ended by an exception{where}, after step {watch.step}:\n"
        f"{said}"
    )


def note_exception(error: BaseException) -> None:
    """Announce that this process ends by `error`, so that the others do not wait for it."""
    global _failed
    _failed = error
    disconnect()


def client() -> Any:
    """Return the connection to the others; meets them first. Raises the fault that one has declared."""
    connect()
    check_heartbeats()
    return _client


def exchange(tag: str, payload: bytes) -> list[bytes]:
    """Wait until every process calls this, and return their values in the order of their indices.

    Raises `PeerError` if one calls it with another `tag`, or does not come in time.
    """
    global _round
    place = own_place()
    if place.count == 1:
        return [payload]
    connection = client()
    with _lock:
        _round += 1
        here = f"exchange/{_round}"
        seconds = config.rendezvous_seconds()
        connection.key_value_set_bytes(f"{_PREFIX}/{here}/{place.index}", tag.encode() + b"\0" + payload)
        brought = _collect(here, place, tag, seconds)
        # When all have come to this round, all have read the last.
        connection.key_value_delete(f"{_PREFIX}/exchange/{_round - 1}/{place.index}")
    for index, (other, _) in enumerate(brought):
        if other != tag:
            raise PeerError(
                f"Process {place.index} waits for the others at {tag!r}, and process {index} at {other!r}: every "
                f"process must come to the same places in the same order."
            )
    return [data for _, data in brought]


def all_come(what: str) -> None:
    """Return when every process has called this for `what`; each process sends three messages.

    Raises `PeerError` on all of them if one ends without it, or does not come for XLA_COLLECTIVE_TIMEOUT seconds.
    """
    client()
    watch = current_watch()
    assert watch is not None
    watch.line = user_lines.user_line()
    _come.append(what)
    if watch.next_number(f"come/{what}") == watch.place.count:
        watch.propose(f"all/{what}", "")
    seconds = config.collective_seconds()
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        try:
            awaited(f"all/{what}", min(left, _LOOK))
            return
        except TimeoutError:
            pass
        _look_for_the_missing(watch, what, seconds if left <= _LOOK else 0)


def _look_for_the_missing(watch: Watch, what: str, waited: float) -> None:
    """Declare a fault if a process has ended, or if one is missing after this process has `waited` for the limit."""
    ended = watch.ended()
    if not ended and not waited:
        return
    others = [index for index in range(watch.place.count) if index != watch.place.index]
    reports = watch.reports(range(watch.place.count)) if waited else {}
    missing = ended or [index for index in others if what not in reports.get(index, {}).get("come", ())]
    who = f"process{'es' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    if ended:
        fault = f"{who.capitalize()} ended and did not {what}, which all do together."
    elif missing:
        reports_in_words = "\n".join(watch.described(reports, index) for index in range(watch.place.count))
        fault = (
            f"Process {watch.place.index} of {watch.place.count} waited {waited:.0f} s for {who} to {what}, which all "
            f"do together. XLA_COLLECTIVE_TIMEOUT sets how long to wait.\n{reports_in_words}"
        )
    else:
        return
    watch.declare(fault)
    raise watch.error()


about_process.append(lambda: {"come": _come})


def _collect(here: str, place: Place, tag: str, seconds: float) -> list[tuple[str, bytes]]:
    brought: list[tuple[str, bytes]] = []
    end = time.monotonic() + seconds
    for index in range(place.count):
        try:
            found = awaited_of([index], f"{here}/{index}", end - time.monotonic(), f"come to {tag!r}")
        except TimeoutError as error:
            raise PeerError(
                f"Process {place.index} of {place.count} waited {seconds:.0f} s for process {index} at {tag!r}, which "
                f"did not come. XLA_RENDEZVOUS_TIMEOUT sets how long to wait."
            ) from error
        name, _, data = found.partition(b"\0")
        brought.append((name.decode(), data))
    return brought


def awaited_of(whom: Sequence[int], key: str, seconds: float, what: str) -> bytes:
    """Wait until one of the processes `whom` writes `key`, and return the value. `what` describes the event in errors.

    Raises `PeerError` on all processes if they ended before that, and `TimeoutError` after `seconds`.
    """
    end = time.monotonic() + seconds
    have_ended = False
    while True:
        left = end - time.monotonic()
        try:
            return awaited(key, _SLICE if have_ended else min(left, _LOOK))
        except TimeoutError:
            watch = current_watch()
            if have_ended and watch is not None:
                _declare_ended(watch, whom, what)
                raise watch.error() from None
            if left <= _LOOK:
                raise
            # They may have put it there just before their end, so it is looked for once more.
            have_ended = watch is not None and set(whom).issubset(watch.ended())


def _declare_ended(watch: Watch, whom: Sequence[int], what: str) -> None:
    who = f"process{'es' if len(whom) > 1 else ''} {', '.join(map(str, whom))}"
    watch.declare(f"{who.capitalize()} of {watch.place.count} ended and did not {what}, where others wait.")


def awaited(key: str, seconds: float) -> bytes:
    """Wait until another process writes `key`, and return the value.

    Raises a fault that a process declares, and `TimeoutError` after `seconds`.
    """
    connection = client()
    end = time.monotonic() + seconds
    while True:
        left = max(0.001, end - time.monotonic())
        try:
            with accounts.Spent(accounts.COMMUNICATION):
                found: bytes = connection.blocking_key_value_get_bytes(
                    f"{_PREFIX}/{key}", int(1000 * min(left, _SLICE)) or 1
                )
            return found
        except RuntimeError as error:
            check_heartbeats()
            if "DEADLINE" not in str(error):
                raise PeerError(f"The other processes can no longer be reached: {error}") from error
            if left <= _SLICE:
                raise TimeoutError(f"nothing came within {seconds:.0f} s") from error
