"""Loaders for `xla` devices: batches are read and uploaded in the background while the device computes.

    import torch_xla.distributed.parallel_loader as pl

    loader = pl.MpDeviceLoader(torch.utils.data.DataLoader(dataset, batch_size=64), "xla")
    for images, labels in loader:
        ...

The tensors of a batch are on the device already, and asking for the next batch ends the step.
"""

import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from .._engine.diagnostics.profiles.profiler import forget_step_ended
from .._engine.input import device_loader, resumable_loaders
from .._engine.input.device_loader import PerDeviceQueue as PerDeviceQueue
from .._engine.step.end_of_step import end_step
from .._engine.tensor.device import Device, current_index, set_current_index
from .._engine.tensor.device_names import device_named

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
    """The batches of one device, in the loader's order: an iterator that ends the steps of whoever consumes it.

    Before the first batch, after every `batches_per_execution` batches and at the end it does what `torch_xla.sync()`
    does, in the thread that asks for the batch.
    """

    def __init__(self, loader: "ParallelLoader", device: DeviceLike) -> None:
        self._loader = loader
        self._device = device_named(device)
        self._yielded = 0
        self._exhausted = False

    def __iter__(self) -> "PerDeviceLoader":
        return self

    def __next__(self) -> Any:
        return self.next()

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def __getattr__(self, name: str) -> Any:
        # An iterator of Grain tells and takes its state: this one does, for the batches that it has given out.
        if name in resumable_loaders.NAMES and "_loader" in self.__dict__:
            place = self._loader._pipeline.place
            if hasattr(place.source, name):
                return resumable_loaders.answer(place, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def next(self) -> Any:
        """The next batch. Raises `StopIteration` after the last one, and what the loader or the upload raised.

        >>> import torch, torch_xla.distributed.parallel_loader as pl
        >>> pl.ParallelLoader([torch.ones(2)], ["xla"]).per_device_loader("xla").next()
        tensor([1., 1.], device='xla:0')
        """
        if self._exhausted:
            raise StopIteration
        # A StepTrace around the step has ended it, unless something was recorded after it.
        ended = forget_step_ended() and not self._device.tape.code
        if self._yielded % self._loader.batches_per_execution == 0 and not ended:
            _end_step(self._device)
        try:
            batch = self._loader._pipeline.next_batch(self._device)
        except device_loader.Exhausted:
            self._exhausted = True
            if self._yielded % self._loader.batches_per_execution:
                _end_step(self._device)
            raise StopIteration from None
        self._yielded += 1
        return batch


class ParallelLoader:
    """Wraps a loader of the CPU, such as a `DataLoader`, with threads that upload its batches ahead of their use.

    The i-th batch goes to `devices[i % len(devices)]`; a last round that does not reach every device is left out. One
    thread reads the loader, and `host_to_device_transfer_threads` threads per device upload; batches arrive in the
    loader's order whatever their number. The reader waits once `loader_prefetch_size` batches wait on the host and
    `device_prefetch_size` on the device: memory stays bounded.

    The tensors in a batch are found in lists, tuples, dicts, dataclasses and other objects; what is not a tensor comes
    out as it went in. An object with a method `to` moves itself by it. `input_sharding` is applied to the tensors it
    fits (`can_apply`), after their upload; a dict of shardings, to the parts of the batch with these names.
    `batches_per_execution` says how many batches are one step. `batchdim` is the dimension of the batch: programs
    pass it, nothing here depends on it. `loader` is another name of `cpu_loader`.

    A loader that shows which batch it gave last (Accelerate's, by `end_of_dataloader`) is not read ahead: each batch is
    read when it is asked for, in the thread that asks.

    The threads begin with the first batch that is asked for: an epoch that a sampler is told after `iter` counts, as
    for a `DataLoader` without workers. They end with the loader, with `close()`, or when the last reference to the
    iterators is gone. An exception in one of them is raised, with its traceback, where the batch is asked for.

    >>> import torch, torch_xla.distributed.parallel_loader as pl
    >>> loader = pl.ParallelLoader([torch.tensor([1, 2]), torch.tensor([3, 4])], ["xla:0"])
    >>> for batch in loader.per_device_loader("xla:0"):
    ...     print((batch * 10).tolist())
    [10, 20]
    [30, 40]
    """

    def __init__(
        self,
        cpu_loader: Iterable[Any] | None = None,
        devices: Sequence[DeviceLike] = (),
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
        *,
        loader: Iterable[Any] | None = None,
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
        self._pipeline: device_loader.Pipeline | device_loader.InTurn
        place = partial(device_loader.place_batch, sharding=input_sharding)
        if len(self._devices) == 1 and device_loader.tells_its_place(cpu_loader):
            self._pipeline = device_loader.InTurn(cpu_loader, self._devices[0], place)
        else:
            queues = [PerDeviceQueue(device, loader_prefetch_size, device_prefetch_size) for device in self._devices]
            self._pipeline = device_loader.Pipeline(cpu_loader, queues, place, host_to_device_transfer_threads)
        # The threads know the pipeline only, so they do not keep alive what ends them.
        weakref.finalize(self, self._pipeline.close)

    def per_device_loader(self, device: DeviceLike) -> PerDeviceLoader:
        """The iterator over the batches of `device`.

        It gives the same structures as the wrapped loader, their tensors on the device.
        """
        return PerDeviceLoader(self, device)

    def per_device_samples(self) -> int:
        """How many batches each device gets.

        >>> import torch, torch_xla.distributed.parallel_loader as pl
        >>> pl.ParallelLoader([torch.ones(2)] * 3, ["xla"]).per_device_samples()
        3
        """
        return len(self._cpu_loader) // len(self._devices)  # type: ignore[arg-type]

    def next_item(self, device: DeviceLike) -> Any:
        """The next batch of `device`, or `None` after the last one. Ends no step.

        >>> import torch, torch_xla.distributed.parallel_loader as pl
        >>> loader = pl.ParallelLoader([torch.ones(2)], ["xla"])
        >>> loader.next_item("xla"), loader.next_item("xla")
        (tensor([1., 1.], device='xla:0'), None)
        """
        try:
            return self._pipeline.next_batch(device_named(device))
        except device_loader.Exhausted:
            return None

    def close(self) -> None:
        """Ends the threads and drops the batches that nobody took; iterators stop.

        Waits for the threads. A thread that is inside the wrapped loader ends when the loader returns: for that, this
        waits five seconds at most.

        >>> import itertools, torch, torch_xla.distributed.parallel_loader as pl
        >>> loader = pl.ParallelLoader(itertools.repeat(torch.ones(2)), ["xla"])
        >>> loader.close()
        >>> list(loader.per_device_loader("xla"))
        []
        """
        self._pipeline.close()

    @property
    def batches_per_execution(self) -> int:
        """How many batches are one step."""
        return self._batches_per_execution

    def send_cpu_data_to_device(self, batches: Any, device: DeviceLike) -> Any:
        """`batches` with every tensor on `device`, and with this loader's `input_sharding`."""
        return device_loader.place_batch(batches, device_named(device), self._input_sharding)


class MpDeviceLoader:
    """A loader whose batches are on an `xla` device: wraps a loader of the CPU, such as a `DataLoader`.

    Each iteration reads and uploads in the background, and ends a step of the device, as `torch_xla.sync()` does, each
    time a batch is asked for. Keyword arguments are those of `ParallelLoader`: `batches_per_execution`,
    `loader_prefetch_size`, `device_prefetch_size`, `host_to_device_transfer_threads`, `input_sharding`. It can be
    iterated as often as the loader can, and has the loader's length and attributes.

    The state of a loader that has one (`state_dict` and `load_state_dict`, as torchdata's `StatefulDataLoader`, or
    `get_state` and `set_state`, as Grain's iterators) is that behind the last batch that was given out, however far
    ahead it is read: ask this object for it, not the wrapped loader.

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

    def __init__(self, loader: Iterable[Any], device: DeviceLike, **kwargs: Any) -> None:
        self._loader = loader
        self._device = device
        # Read at each iteration: frameworks add to it after they got the loader.
        self._parallel_loader_kwargs = kwargs

    # That of the last iteration, of a loader that tells its state.
    _place: resumable_loaders.ReadAhead | None = None

    def __iter__(self) -> PerDeviceLoader:
        loader = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        self._place = loader._pipeline.place
        return loader.per_device_loader(self._device)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # Copying and unpickling ask for attributes before there is a loader.
        if name == "_loader" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name not in resumable_loaders.NAMES:
            return getattr(self._loader, name)
        place = self._place
        if not hasattr(self._loader, name):
            raise AttributeError(
                f"{type(self).__name__}.{name}: {type(self._loader).__name__} has no {name!r}"
                + (f"; its iterator has: it = iter(loader), then it.{name}(...)" if _has(place, name) else "")
            )
        if place is None or place.source is not self._loader:
            return getattr(self._loader, name)
        return resumable_loaders.answer(place, name)

    def __getstate__(self) -> dict[str, Any]:
        # A copy is not in the middle of an iteration.
        return {name: value for name, value in self.__dict__.items() if name != "_place"}


def _has(place: resumable_loaders.ReadAhead | None, name: str) -> bool:
    return place is not None and hasattr(place.source, name)
