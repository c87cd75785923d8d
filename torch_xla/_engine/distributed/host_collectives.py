"""Collectives on host memory beside the device, by Gloo.

So objects need no program for each of their sizes, and a checkpoint that is written in the background does not mix with
the collectives of the step.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from ..atomic import lock
from ..compat.names import torch_distributed
from ..errors import PeerError
from ..metrics import accounts
from ..processes import heartbeats, identity
from ..step.schedule import is_common
from ..step.sync import sync_step
from ..tensor.device import existing_devices
from .staged_collectives import written_after

Method = TypeVar("Method", bound=Callable[..., Any])

# The dtypes that Gloo supports. Tensors of other dtypes are exchanged by the device.
_DTYPES = (
    torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
)  # fmt: skip

# The interval, in seconds, at which a process that waits for others checks whether one has ended.
_LOOK = 3.0

# How many seconds Gloo has to connect processes that all are there, and how often it is asked to.
_CONNECTING = 30.0
_TRIES = 3

# How many groups of the same processes there were: each has keys of its own in a store that outlives it.
_times: dict[tuple[int, ...], int] = {}


class HostGroup:
    """The same processes as a group on the device, which Gloo connects when the first of their tensors comes."""

    def __init__(self, store: Any, rank: int, ranks: Sequence[int], timeout: Any) -> None:
        members = tuple(ranks)
        _times[members] = _times.get(members, 0) + 1
        name = f"torch_xla/host/{'-'.join(map(str, members))}/{_times[members]}"
        self._store = None if store is None else PrefixStore(name, store)
        self._rank, self._size, self._members = rank, len(members), members
        self._timeout = timeout if timeout is not None else timedelta(minutes=30)
        self._lock = lock()
        self._made: Any = None

    def carries(self, arguments: Sequence[Any]) -> bool:
        """Return whether a collective exchanges its tensors over the host: if all of them are on the host."""
        if self._store is None or self._size == 1 or not torch_distributed.has_gloo():
            return False
        tensors = [tensor for argument in arguments for tensor in _tensors(argument)]
        if not tensors or any(torch_distributed.reduces_unlike_gloo(argument) for argument in arguments):
            return False
        return all(t.device.type == "cpu" and t.dtype in _DTYPES for t in tensors)

    def connection(self) -> Any:
        """Return PyTorch's group; all processes come here with their first tensors in the host's memory."""
        _start_exchanges()
        with self._lock:
            if self._made is None:
                self._made = self._connected()
            return self._made

    def _connected(self) -> Any:
        """Return Gloo's group, in which all processes are connected.

        Gloo may fail in one process while the others believe themselves connected, and would wait for it in the first
        collective. So each says what it found, and where one has failed, all try again. Raises `PeerError` if the last
        try fails too.
        """
        store: Any = self._store  # there is one: else the device carries all
        here = "127.0.0.1" if identity.place().is_on_one_machine else ""
        limit = min(self._timeout, timedelta(seconds=_CONNECTING))
        failed: dict[int, str] = {}
        for number in range(_TRIES):
            self._meet(f"{number}/here", "")
            made, error = None, ""
            try:
                made = torch_distributed.gloo(PrefixStore(str(number), store), self._rank, self._size, limit, here)
            except RuntimeError as raised:
                error = str(raised) or type(raised).__name__
            self._meet(f"{number}/connected", error)
            said = {index: store.get(f"{number}/connected/{place}") for place, index in enumerate(self._members)}
            failed = {index: words.decode(errors="replace") for index, words in said.items() if words}
            if made is not None and not failed:
                torch_distributed.set_timeout(made, self._timeout)
                return made
        index, words = next(iter(failed.items()))
        raise PeerError(
            f"Gloo did not connect {self._size} processes for collectives of objects or tensors in the host's memory, "
            f"in {_TRIES} tries of {limit.total_seconds():.0f} s. Process {index}: {words}"
        )

    def _meet(self, name: str, word: str) -> None:
        """Say a word, and wait until all processes of the group have. Gloo would wait without naming the missing.

        Raises `PeerError` if one has ended without it, or does not come in time.
        """
        store: Any = self._store
        store.set(f"{name}/{self._rank}", word)
        end = time.monotonic() + self._timeout.total_seconds()
        for place, index in enumerate(self._members):
            has_ended = False
            while not store.check([f"{name}/{place}"]):
                watch = heartbeats.watch()
                heartbeats.check()
                if has_ended and watch is not None:
                    watch.declare(
                        f"Process {index} of {watch.place.count} ended without a collective of objects or tensors in "
                        f"the host's memory that others wait in: all processes must run the same ones."
                    )
                    raise watch.error()
                left = end - time.monotonic()
                if left <= 0:
                    raise PeerError(
                        f"Process {self._members[self._rank]} waited {self._timeout.total_seconds():.0f} s in a "
                        f"collective of objects or tensors in the host's memory for process {index}, which did not "
                        f"come. The timeout of the process group sets how long to wait."
                    )
                # It may have come just before its end, so it is looked for once more.
                has_ended = watch is not None and index in watch.ended()
                with suppress(RuntimeError):  # a store that is lost says so at the next look
                    store.wait([f"{name}/{place}"], timedelta(seconds=max(0.01, min(left, _LOOK))))


def _start_exchanges() -> None:
    """Start this thread's recorded operations if others may wait for them on the device, before waiting here."""
    for device in existing_devices():
        if is_common(device, (*device.tape.code,)):
            sync_step(device)


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            yield from _tensors(each)


def or_here(method: Method) -> Method:
    """Return a collective of a group whose `host` carries it where its tensors are in the host's memory."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> object:
        given = [*args, *kwargs.values()]
        if self.host.carries(given):
            with accounts.Spent(accounts.COMMUNICATION):
                return _exchange(getattr(self.host.connection(), method.__name__), method.__name__, args, kwargs)
        return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


def _exchange(collective: Callable[..., object], name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> object:
    """Call a method of Gloo's group, by copies of tensors that do not fill their memory in order.

    Gloo exchanges as many elements of the memory as a tensor has, from its first one on, whatever its strides.
    """
    if all(tensor.is_contiguous() for tensor in _tensors([*args, *kwargs.values()])):
        return collective(*args, **kwargs)
    copied = [_contiguous(each) for each in args]
    work = collective(*copied, **{key: _contiguous(value) for key, value in kwargs.items()})
    written = [] if name == "send" else zip(_tensors(args[0]), _tensors(copied[0]), strict=True)
    pairs = [(target, copy) for target, copy in written if target is not copy]
    ended = written_after(work, [target for target, _ in pairs], [copy for _, copy in pairs])
    return torch_distributed.HostWork(work, ended)


def _contiguous(argument: Any) -> object:
    if isinstance(argument, torch.Tensor):
        return argument.contiguous()
    return [_contiguous(each) for each in argument] if isinstance(argument, (list, tuple)) else argument
