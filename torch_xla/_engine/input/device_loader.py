"""Load batches in threads and upload them to the devices ahead of their use.

For each device: reader → `loader_queue` → uploaders → `queue` → the iterator of the training loop. Both queues are
bounded, so the reader stops when the device is behind. Only data moves here: nothing is recorded and nothing is run.
"""

import copy
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from ..atomic import lock
from ..metrics import accounts
from ..pytree.instances import contains, rewrite
from ..quiet_calls import quiet
from ..tensor.device import Device
from ..tensor.storage import wrap
from ..transfer import host_copies
from .closable_queues import Queue, QueueClosed
from .resumable_loaders import Note, ReadAhead

# How long closing waits for a thread that is inside the user's loader. It ends as soon as the loader returns.
_PATIENCE = 5.0


def upload_batch(batch: object, device: Device) -> Any:
    """Return `batch` with every tensor in it on `device`. Other objects, and the given batch, do not change."""
    return rewrite(batch, _is_uploaded, partial(_uploaded, device))


def _is_elsewhere(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "xla"


def _is_uploaded(value: object) -> bool:
    kind = type(value)
    if kind is torch.Tensor:
        return _is_elsewhere(value)
    # Tensors of other classes, and what holds tensors and moves itself: `PackedSequence`, the encodings of tokenizers.
    return callable(getattr(kind, "to", None)) and contains(value, _is_elsewhere)


def _uploaded(device: Device, value: Any) -> torch.Tensor:
    return wrap(host_copies.upload(value, device)) if _is_plain(value) else value.to(device.torch_device)


def _is_plain(value: object) -> bool:
    # Nothing but numbers on the CPU: nothing that `.to` does, except uploading, applies.
    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.is_nested
        and not value.requires_grad
    )


def place_batch(batch: object, device: Device, sharding: Any) -> Any:
    """Upload a batch; each tensor that the sharding fits goes from the host straight to its parts.

    `sharding` is one for all tensors, or a structure of them for the parts of the batch: by name, or by place.
    """
    if sharding is None:
        return upload_batch(batch, device)
    if isinstance(sharding, Mapping):
        return _by_name(batch, device, sharding)
    if isinstance(sharding, list | tuple):
        return _by_place(batch, device, sharding)
    if not hasattr(sharding, "can_apply"):
        raise TypeError(
            f"input_sharding: expected a ShardingSpec, or a structure of them like the batch; got {sharding!r}"
        )

    def fits(value: object) -> bool:
        return isinstance(value, torch.Tensor) and bool(sharding.can_apply(value))

    def placed(value: torch.Tensor) -> torch.Tensor:
        upload = getattr(sharding, "upload", None)
        if upload is not None and _is_plain(value):
            made: torch.Tensor = upload(value, device)
            return made
        moved: torch.Tensor = _uploaded(device, value) if _is_elsewhere(value) else value
        sharding.apply(moved)
        return moved

    return upload_batch(rewrite(batch, fits, placed), device)


def _by_name(batch: object, device: Device, sharding: Mapping[Any, Any]) -> Any:
    if not isinstance(batch, Mapping):
        raise ValueError(f"input_sharding names parts of the batch, but the batch is a {type(batch).__name__}")
    missing = [name for name in batch if name not in sharding]
    if missing:
        raise KeyError(
            f"input_sharding has no entry for {missing} of the batch, but for {list(sharding)}: give each part a "
            "ShardingSpec, or None for a copy on each device"
        )
    parts = {name: place_batch(part, device, sharding[name]) for name, part in batch.items()}
    if not isinstance(batch, MutableMapping):
        return parts
    whole = copy.copy(batch)
    for name, part in parts.items():  # the outputs of models can be set item by item, and not updated
        whole[name] = part
    return whole


def _by_place(batch: object, device: Device, sharding: Sequence[object]) -> Any:
    if not isinstance(batch, list | tuple) or len(batch) != len(sharding):
        given = f"{len(batch)} parts" if isinstance(batch, list | tuple) else f"a {type(batch).__name__}"
        raise TypeError(f"input_sharding has {len(sharding)} entries, but the batch is {given}")
    parts = [place_batch(part, device, each) for part, each in zip(batch, sharding, strict=True)]
    if hasattr(batch, "_fields"):
        return type(batch)(*parts)
    return type(batch)(parts)


class PerDeviceQueue:
    """The batches on their way to one device: batches on the host, and uploads that are running or done."""

    def __init__(self, device: Device, loader_prefetch_size: int, device_prefetch_size: int) -> None:
        self.device = device
        self.loader_queue = Queue(loader_prefetch_size)
        self.queue = Queue(device_prefetch_size)
        # To take a batch and a place behind those taken before is one act, so that they arrive in the loader's order.
        self.turn = lock()

    def fresh(self) -> "PerDeviceQueue":
        """Return an open one of the same sizes."""
        return PerDeviceQueue(self.device, self.loader_queue.max_size(), self.queue.max_size())

    def close(self) -> None:
        """Drop every batch and wake the waiting threads."""
        self.loader_queue.close()
        self.queue.close()


class Exhausted(Exception):
    """There is no next batch: the loader gave its last one, or the pipeline was closed."""


class Pipeline:
    """Read a loader and upload its batches, the i-th to the device i modulo their number, until it is closed.

    A last round without a batch for every device is left out, so each device gets the same number of batches. An
    exception of the loader is raised at every device instead of its next batch, and ends the iteration. An exception of
    an upload is raised at its device instead of that batch.
    """

    def __init__(
        self,
        loader: Iterable[object],
        queues: Sequence[PerDeviceQueue],
        upload: Callable[[Any, Device], Any],
        threads: int,
    ) -> None:
        if threads < 1:
            raise ValueError(f"host_to_device_transfer_threads must be at least 1; got {threads}")
        self._queues = {queue.device.index: queue for queue in queues}
        if len(self._queues) < len(queues) or not queues:
            raise ValueError(f"a loader needs one or more devices, each once; got {[queue.device for queue in queues]}")
        self._process = os.getpid()
        # Begun here, not in the reader: now a loader forks its workers and draws the seed of its order.
        self._batches: Iterator[object] | None = _begin(loader)
        self.place = ReadAhead(loader, self._batches)
        self._iterator = self._batches if self.place.is_of_iterator else None
        self.place.ends_by(self._set_back)
        self._is_of_iterator = self._batches is loader
        self.restarts = 0  # how often its iterator got another state, and is read from there
        self._last: list[Note | None] = []  # behind the last batch, when it was read
        self._upload, self._uploaders = upload, threads
        self._threads: list[threading.Thread] = []
        self._starting, self._is_closed, self._is_over = lock(), False, False

    def _start(self) -> None:
        """Start the threads, at the first batch: a loader without workers reads its sampler at this time, too.

        So what is set after `iter(loader)` counts: the sampler's epoch, a seed.
        """
        with self._starting:
            try:
                batches, self._batches = self._batches, None
                if batches is None:  # another thread was faster
                    return
                self._process = os.getpid()
                self.place.given = self.place.note()
                self._threads = self._made(batches)
                for thread in self._threads:
                    thread.start()
            except BaseException:
                self.close()
                raise

    def _made(self, batches: Iterator[object]) -> list[threading.Thread]:
        queues = tuple(self._queues.values())
        given = batches, queues, self.place.note, self._last
        made = [threading.Thread(target=_read, args=given, name="xla-reader", daemon=True)]
        for queue in queues:
            for number in range(self._uploaders):
                name = f"xla-upload-{queue.device.index}.{number}"
                made.append(threading.Thread(target=_upload, args=(queue, self._upload), name=name, daemon=True))
        return made

    def next_batch(self, device: Device) -> Any:
        """Return the next batch of `device`; waits for it. Raises `Exhausted` after the last one."""
        if self.place.why_over:
            raise RuntimeError(self.place.why_over)
        queue = self._queues.get(device.index)
        if queue is None:
            names = ", ".join(f"xla:{index}" for index in self._queues)
            raise ValueError(f"xla:{device.index} is not a device of this loader; it loads for {names}")
        if self._batches is not None:
            self._start()
        with accounts.Spent(accounts.INPUT):
            coming: Future[Any] | None = queue.queue.get()
        if coming is None:
            self._is_over = True
            if self._last and not self._is_closed:
                self.place.given = self._last[0]
            raise Exhausted
        with accounts.Spent(accounts.INPUT):
            batch, error, note = coming.result()
        if error is not None:
            self._is_over = True
            raise error
        self.place.given = note
        return batch

    @property
    def goes_on(self) -> bool:
        """Return whether there is an iterator to go on with: some of its batches may be read and not given out.

        A loader begins again with each iteration. An iterator does not, and what was read of it is read once.
        """
        is_going = not (self._is_over or self._is_closed) and os.getpid() == self._process  # a fork has no threads
        return self._is_of_iterator and is_going

    @property
    def is_left(self) -> bool:
        """Return whether it was closed before its end, and no thread is inside the loader."""
        is_here = self._is_closed and not self._is_over and os.getpid() == self._process
        return is_here and not any(thread.is_alive() for thread in self._threads)

    def _set_back(self) -> None:
        """End the reading. An iterator that gets another state is read again from there."""
        if self._batches is not None or self._is_closed:
            return  # nothing is read
        self.close()
        if any(thread.is_alive() for thread in self._threads):
            raise RuntimeError(
                f"a thread is inside {type(self.place.source).__name__} still, after {_PATIENCE:g} seconds: its state "
                "cannot be set meanwhile. Set it before the first batch is taken."
            )
        if self._iterator is not None:
            self._queues = {index: queue.fresh() for index, queue in self._queues.items()}
            self._batches, self._last, self._is_closed, self._is_over = self._iterator, [], False, False
            self.restarts += 1

    def close(self) -> None:
        """End the threads, and wait for them for a limited time, in case the loader does not return."""
        if os.getpid() != self._process:
            return  # a fork has none of the threads, and perhaps a lock that one of them held
        self._batches, self._is_closed = None, True
        for queue in self._queues.values():
            queue.close()
        deadline = time.monotonic() + _PATIENCE
        for thread in self._threads:
            # Garbage may be collected in any thread, in one of these too.
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def tells_its_place(loader: object) -> bool:
    """Return whether a loader shows, while it is iterated, which batch it has returned last.

    Accelerate's loaders do: `end_of_dataloader` decides when gradients are synchronised and a last, incomplete
    accumulation is flushed. If they were read ahead, they would show the place of the reader, not of the training loop.
    """
    return hasattr(loader, "end_of_dataloader")


class InTurn:
    """A `Pipeline` to one device that reads a batch when it is asked for one, in the thread that asks."""

    goes_on = is_left = False  # nothing is read that was not given out
    restarts = 0

    def __init__(self, loader: Iterable[object], device: Device, upload: Callable[[Any, Device], Any]) -> None:
        self._device = device
        self._upload = upload
        self._batches: Iterator[object] | None = _begin(loader)
        self.place = ReadAhead(loader, self._batches)

    def next_batch(self, device: Device) -> object:
        """Return the next batch of `device`. Raises `Exhausted` after the last one."""
        if device is not self._device:
            raise ValueError(f"{device} is not a device of this loader; it loads for {self._device}")
        if self._batches is None:
            raise Exhausted
        try:
            return self._upload(next(self._batches), device)
        except StopIteration:
            self._batches = None
            raise Exhausted from None

    def close(self) -> None:
        """Drop the loader's iterator."""
        self._batches = None


# JAX warns of every fork. The workers that a DataLoader forks here do not use JAX.
@quiet(RuntimeWarning, r"os\.fork\(\) was called")
def _begin(loader: Iterable[object]) -> Iterator[object]:
    return iter(loader)


def _read(
    batches: Iterator[object],
    queues: Sequence[PerDeviceQueue],
    note: Callable[[], Note | None],
    last: list[Note | None],
) -> None:
    try:
        while True:
            # A whole round or nothing: all devices take the same number of steps.
            together = [next(batches) for _ in queues]
            noted = note()
            for queue in queues:
                queue.loader_queue.put((together.pop(0), None, noted))
    except StopIteration:
        last.append(note())
    except QueueClosed:
        pass
    except BaseException as error:  # of the user's loader: raised where the batch is taken
        for queue in queues:
            with suppress(QueueClosed):
                queue.loader_queue.put((None, error, None))
    finally:
        for queue in queues:
            queue.loader_queue.close_write()


def _upload(queue: PerDeviceQueue, upload: Callable[[Any, Device], Any]) -> None:
    with suppress(QueueClosed):
        _upload_all(queue, upload)


def _upload_all(queue: PerDeviceQueue, upload: Callable[[Any, Device], Any]) -> None:
    while _upload_next(queue, upload):
        pass


def _upload_next(queue: PerDeviceQueue, upload: Callable[[Any, Device], Any]) -> bool:
    coming: Future[Any] = Future()
    with queue.turn:
        source = queue.loader_queue.get()
        if source is None:
            queue.queue.close_write()
            return False
        queue.queue.put(coming)
    batch, error, noted = source
    try:
        coming.set_result((batch if error is not None else upload(batch, queue.device), error, noted))
    except BaseException as failure:  # raised where the batch is taken
        coming.set_exception(failure)
    return True
