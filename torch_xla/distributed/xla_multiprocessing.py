"""Starts the processes of a program: `import torch_xla.distributed.xla_multiprocessing as xmp`.

Each process of a program has one device. `torch_xla.launch` does what `spawn` does, and besides calls the function
where `torchrun` has started the processes.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.multiprocessing
from torch import nn

from .._engine.compat import removed_names
from .._engine.distributed import process_launch

__getattr__ = removed_names.asked_of(__name__)

# A lock of the spawn context can be handed to processes of every start method; one of the fork context cannot.
_LOCKS = torch.multiprocessing.get_context("spawn")


def spawn(
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Calls `fn(index, *args)` for each device: with `nprocs=1` in this process, else in a child for each.

    `index` is the ordinal of the device among those of this machine. With `join=False` the context of
    `torch.multiprocessing.start_processes` is returned at once (`.processes`, `.join()`), else `None` at the end; with
    `nprocs=1` always `None` at the end. `daemon` and `start_method` are those of `torch.multiprocessing`. With
    `"spawn"`, `fn` and `args` are pickled, so `fn` must be importable; with `"fork"` they need not be.

    Each child has one device, `xla:0`, and knows the others: `torch_xla.runtime.global_ordinal()` and `world_size()`.
    On the CPU there are as many devices as `CPU_NUM_DEVICES` says; unset, `nprocs` does.

    Raises what `fn` raised with `nprocs=1`, and `torch.multiprocessing.ProcessRaisedException` for a child, with its
    traceback and its index; the other children are ended. Raises `ValueError` for an `nprocs` that is not the number of
    devices, and `RuntimeError` for a fork of a process that has used a device or in a process of such a program.

    >>> import torch, torch_xla
    >>> import torch_xla.distributed.xla_multiprocessing as xmp
    >>> def train(index, size):
    ...     print(index, torch.ones(size, device=torch_xla.device()).sum().item())
    >>> xmp.spawn(train, args=(3,), nprocs=1)
    0 3.0
    """
    if nprocs == 1:
        fn(0, *args)
        return None
    return process_launch.start(fn, args, process_launch.checked_count(nprocs), join, daemon, start_method)


def create_optimized_replica_groups() -> list[list[int]] | None:
    """`None`: the order of the processes in a collective is XLA's, which knows how its devices are connected.

    >>> import torch_xla.distributed.xla_multiprocessing as xmp
    >>> xmp.create_optimized_replica_groups() is None
    True
    """
    return None


class MpModelWrapper:
    """A model made before the processes start, so that those that are forked share its memory until they write.

    `.to(device)` moves it in one process after the other, so that the copies of all are not in host memory at once.

    >>> import torch, torch_xla
    >>> import torch_xla.distributed.xla_multiprocessing as xmp
    >>> model = xmp.MpModelWrapper(torch.nn.Linear(2, 3))
    >>> model.to(torch_xla.device()).weight.device
    device(type='xla', index=0)
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._lock = _LOCKS.Lock()

    def to(self, device: torch.device | str) -> nn.Module:
        """The model, on `device`."""
        with self._lock:
            return self._model.to(device)


class MpSerialExecutor:
    """Calls a function in one process after the other, such as one that downloads a data set.

    Make it before the processes start.

    >>> import torch_xla.distributed.xla_multiprocessing as xmp
    >>> serial = xmp.MpSerialExecutor()
    >>> serial.run(lambda: 1 + 1)
    2
    """

    def __init__(self) -> None:
        self._lock = _LOCKS.Lock()

    def run(self, fn: Callable[[], Any]) -> Any:
        """What `fn()` returns; while it runs, no other process is in `run` of this object."""
        with self._lock:
            return fn()
