"""Loaders for `xla` devices: batches are read and uploaded in the background while the device computes.

    import torch_xla.distributed.parallel_loader as pl

    loader = pl.MpDeviceLoader(torch.utils.data.DataLoader(dataset, batch_size=64), "xla")
    for images, labels in loader:
        ...

The tensors of a batch are already on the device, and the request for the next batch ends the step.
"""

import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from .._engine import input
from .._engine.diagnostics import forget_step_ended
from .._engine.input import PerDeviceQueue as PerDeviceQueue
from .._engine.step import end_step
from .._engine.tensor import Device, current_index, device_named, set_current_index

DeviceLike = torch.device | str | int


def _end_step(device: Device) -> None:
    before = current_index()
    if before == device.index:
        end_step()
        return
    set_current_index(device.index)
    try:
        end_step()
    finally:
        set_current_index(before)


class PerDeviceLoader:
    """The batches of one device, in the loader's order: an iterator that also ends the steps.

    Before the first batch, after every `batches_per_execution` batches and at the end, it does the same as
    `torch_xla.sync()`, in the thread that requests the batch.
    """

    def __init__(self, loader: "ParallelLoader", device: DeviceLike) -> None:
        self._loader = loader
        self._device = device_named(device)
        self._yielded = 0
        self._ended_at: int | None = None  # the number of restarts of the pipeline when this was exhausted

    def __iter__(self) -> "PerDeviceLoader":
        return self

    def __next__(self) -> Any:
        return self.next()

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def __getattr__(self, name: str) -> Any:
        # An iterator of Grain reads and sets its state. So does this one, for the batches that it has given out.
        if name in input.STATE_NAMES and "_loader" in self.__dict__:
            place = self._loader._pipeline.place
            if hasattr(place.source, name):
                return input.answer_for_state(place, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def next(self) -> Any:
        """Return the next batch. Raises `StopIteration` after the last one, and errors of the loader or the upload.

        >>> import torch, torch_xla.distributed.parallel_loader as pl
        >>> pl.ParallelLoader([torch.ones(2)], ["xla"]).per_device_loader("xla").next()
        tensor([1., 1.], device='xla:0')
        """
        if self._ended_at == self._loader._pipeline.restarts:
            raise StopIteration
        # A StepTrace around the step has ended it, unless something was recorded after it.
        ended = forget_step_ended() and not self._device.tape.code
        if self._yielded % self._loader.batches_per_execution == 0 and not ended:
            _end_step(self._device)
        try:
            batch = self._loader._pipeline.next_batch(self._device)
        except input.Exhausted:
            self._ended_at = self._loader._pipeline.restarts
            if self._yielded % self._loader.batches_per_execution:
                _end_step(self._device)
            raise StopIteration from None
        self._yielded += 1
        return batch


class ParallelLoader:
    """A loader of the CPU, such as a `DataLoader`, with threads that upload its batches ahead of their use.

    The i-th batch goes to `devices[i % len(devices)]`; a last round without a batch for every device is left out. One
    thread reads the loader, and `host_to_device_transfer_threads` threads per device upload. Batches arrive in the
    loader's order, whatever the number of threads. To bound memory, the reader pauses while `loader_prefetch_size`
    batches wait on the host and `device_prefetch_size` on the device.

    Tensors are found in lists, tuples, dicts, dataclasses and other objects of a batch. Objects that are not tensors
    are passed through, but an object with a method `to` is moved by calling it. After the upload, `input_sharding` is
    applied to the tensors that it fits (`can_apply`); a dict of shardings is applied to the entries of the batch with
    these names. `batches_per_execution` is the number of batches per step. `batchdim` is accepted and not used.
    `loader` is another name of `cpu_loader`.

    A loader that shows which batch it returned last (Accelerate's, by `end_of_dataloader`) is not read ahead: each
    batch is read when it is requested, in the thread that requests it.

    The threads begin with the first requested batch. An epoch that is set on a sampler after `iter` therefore has an
    effect, as for a `DataLoader` without workers. The threads end with the loader, with `close()`, or when the last
    reference to the iterators is gone. An exception in a thread is raised, with its traceback, where the batch is
    requested.

    >>> import torch, torch_xla.distributed.parallel_loader as pl
    >>> loader = pl.ParallelLoader([torch.tensor([1, 2]), torch.tensor([3, 4])], ["xla:0"])
    >>> for batch in loader.per_device_loader("xla:0"):
    ...     print((batch * 10).tolist())
    [10, 20]
    [30, 40]
    """

    def __init__(
        self,
        cpu_loader: Iterable[object] | None = None,
        devices: Sequence[DeviceLike] = (),
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
        *,
        loader: Iterable[object] | None = None,
    ) -> None:
        if (cpu_loader is None) == (loader is None):
            raise TypeError("ParallelLoader() takes one loader: the first argument, also called cpu_loader or loader")
        cpu_loader = loader if cpu_loader is None else cpu_loader
        assert cpu_loader is not None
        if batches_per_execution < 1:
            raise ValueError(f"batches_per_execution must be at least 1; got {batches_per_execution}")
        self._cpu_loader = cpu_loader
        self._devices = [device_named(device) for device in devices]
        self._batchdim = batchdim
        self._batches_per_execution = batches_per_execution
        self._input_sharding = input_sharding
        self._pipeline: input.Pipeline | input.InTurn
        place = partial(input.place_batch, sharding=input_sharding)
        if len(self._devices) == 1 and input.tells_its_place(cpu_loader):
            self._pipeline = input.InTurn(cpu_loader, self._devices[0], place)
        else:
            queues = [PerDeviceQueue(device, loader_prefetch_size, device_prefetch_size) for device in self._devices]
            self._pipeline = input.Pipeline(cpu_loader, queues, place, host_to_device_transfer_threads)
        # The threads know the pipeline only, so they do not keep alive what ends them.
        weakref.finalize(self, self._pipeline.close)

    def per_device_loader(self, device: DeviceLike) -> PerDeviceLoader:
        """Return the iterator over the batches of `device`.

        It yields the same structures as the wrapped loader, with their tensors on the device.
        """
        return PerDeviceLoader(self, device)

    def per_device_samples(self) -> int:
        """Return the number of batches of each device.

        >>> import torch, torch_xla.distributed.parallel_loader as pl
        >>> pl.ParallelLoader([torch.ones(2)] * 3, ["xla"]).per_device_samples()
        3
        """
        return len(self._cpu_loader) // len(self._devices)  # type: ignore[arg-type]

    def next_item(self, device: DeviceLike) -> Any:
        """Return the next batch of `device`, or `None` after the last one. Ends no step.

        >>> import torch, torch_xla.distributed.parallel_loader as pl
        >>> loader = pl.ParallelLoader([torch.ones(2)], ["xla"])
        >>> loader.next_item("xla"), loader.next_item("xla")
        (tensor([1., 1.], device='xla:0'), None)
        """
        try:
            return self._pipeline.next_batch(device_named(device))
        except input.Exhausted:
            return None

    def close(self) -> None:
        """End the threads, drop the remaining batches and stop the iterators.

        Waits for the threads. A thread inside the wrapped loader ends when the loader returns; `close` waits for that
        at most five seconds.

        >>> import itertools, torch, torch_xla.distributed.parallel_loader as pl
        >>> loader = pl.ParallelLoader(itertools.repeat(torch.ones(2)), ["xla"])
        >>> loader.close()
        >>> list(loader.per_device_loader("xla"))
        []
        """
        self._pipeline.close()

    @property
    def batches_per_execution(self) -> int:
        """Return the number of batches per step."""
        return self._batches_per_execution

    def send_cpu_data_to_device(self, batches: object, device: DeviceLike) -> object:
        """Return `batches` with every tensor on `device`, and with this loader's `input_sharding`."""
        return input.place_batch(batches, device_named(device), self._input_sharding)


class MpDeviceLoader:
    """A loader whose batches are on an `xla` device: wraps a loader of the CPU, such as a `DataLoader`.

    An iteration reads and uploads batches in the background. Each request for a batch ends a step of the device, as
    `torch_xla.sync()` does. Keyword arguments are those of `ParallelLoader`: `batches_per_execution`,
    `loader_prefetch_size`, `device_prefetch_size`, `host_to_device_transfer_threads`, `input_sharding`. It can be
    iterated as often as the loader, and has the loader's length and attributes. If it wraps an iterator, such as a
    generator, another `for` goes on behind the last batch that was given out, as with the iterator itself. So it does
    if it wraps a loader with a state that itself goes on after a `break`.

    A loader may have a state: `state_dict` and `load_state_dict`, as torchdata's `StatefulDataLoader`, or `get_state`
    and `set_state`, as Grain's iterators. Read the state from this object, not from the wrapped loader, which is read
    ahead: this object returns the state after the last batch that it has given out.

    >>> import torch, torch_xla.distributed.parallel_loader as pl
    >>> dataset = torch.utils.data.TensorDataset(torch.arange(6.0))
    >>> loader = pl.MpDeviceLoader(torch.utils.data.DataLoader(dataset, batch_size=3), "xla")
    >>> len(loader), loader.batch_size
    (2, 3)
    >>> for [batch] in loader:
    ...     print(batch.device, batch.sum().item())
    xla:0 3.0
    xla:0 12.0
    """

    def __init__(self, loader: Iterable[object], device: DeviceLike, **kwargs: Any) -> None:
        self._loader = loader
        self._device = device
        # Read at each iteration: frameworks add to it after they got the loader.
        self._parallel_loader_kwargs = kwargs
        self._again = input.AnotherLoop()

    # The place of the last iteration, for a loader that has a state, and what read it.
    _place: input.ReadAhead | None = None
    _read_by: input.Pipeline | input.InTurn | None = None
    # The last iteration of an iterator, such as a generator: the next one goes on with the batches that were read.
    _reading: ParallelLoader | None = None

    def __iter__(self) -> PerDeviceLoader:
        loader = self._reading
        if loader is None or not loader._pipeline.goes_on:
            begin = partial(ParallelLoader, self._loader, [self._device], **self._parallel_loader_kwargs)
            left = self._read_by.place if self._read_by is not None and self._read_by.is_left else None
            loader = begin() if left is None else self._again.begin(self._loader, left, begin)
            self._place, self._read_by = loader._pipeline.place, loader._pipeline
            self._reading = loader if loader._pipeline.goes_on else None
        return loader.per_device_loader(self._device)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # Copying and unpickling ask for attributes before there is a loader.
        if name == "_loader" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name not in input.STATE_NAMES:
            return getattr(self._loader, name)
        place = self._place
        if not hasattr(self._loader, name):
            raise AttributeError(
                f"{type(self).__name__}.{name}: {type(self._loader).__name__} has no {name!r}"
                + (f"; its iterator has: it = iter(loader), then it.{name}(...)" if _has(place, name) else "")
            )
        if place is None or place.source is not self._loader:
            return getattr(self._loader, name)
        return input.answer_for_state(place, name)

    def __getstate__(self) -> dict[str, object]:
        # A copy is not in the middle of an iteration.
        return {name: value for name, value in self.__dict__.items() if name not in ("_place", "_read_by", "_reading")}


def _has(place: input.ReadAhead | None, name: str) -> bool:
    return place is not None and hasattr(place.source, name)
