"""Start the processes of a program: `import torch_xla.distributed.xla_multiprocessing as xmp`.

Each process of a program has one device. `torch_xla.launch` does the same as `spawn`, and also works under `torchrun`,
which has already started the processes.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.multiprocessing
from torch import nn

from .._engine import distributed
from .._engine.compat import removed_names

__getattr__ = removed_names.asked_of(__name__)

# A lock of the spawn context can be handed to processes of every start method; one of the fork context cannot.
_LOCKS = torch.multiprocessing.get_context("spawn")


def spawn(
    fn: Callable[..., object],
    args: Iterable[object] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Call `fn(index, *args)` for each device: with `nprocs=1` in this process, else in one child process for each.

    `index` is the ordinal of the device on this machine. With `join=False`, return the context of
    `torch.multiprocessing.start_processes` at once (`.processes`, `.join()`); otherwise return `None` at the end. With
    `nprocs=1`, always return `None` at the end. `daemon` and `start_method` are those of `torch.multiprocessing`. With
    `"spawn"`, `fn` and `args` are pickled, so `fn` must be importable; with `"fork"` they are not pickled.

    Each child has one device, `xla:0`, and its place in `torch_xla.runtime.global_ordinal()` and `world_size()`. The
    number of devices of the CPU is `CPU_NUM_DEVICES`, or `nprocs` if it is not set.

    With `nprocs=1`, raises the exception of `fn`. If a child fails, ends the other children and raises
    `torch.multiprocessing.ProcessRaisedException` with the child's traceback and index. Raises `ValueError` if `nprocs`
    is not the number of devices. Raises `RuntimeError` when called in a child, and for a fork of a process that has
    used a device.

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
    return distributed.start_process(fn, args, distributed.checked_process_count(nprocs), join, daemon, start_method)


def create_optimized_replica_groups() -> list[list[int]] | None:
    """Return `None`: XLA knows the topology of its devices and orders the processes of a collective.

    >>> import torch_xla.distributed.xla_multiprocessing as xmp
    >>> xmp.create_optimized_replica_groups() is None
    True
    """
    return None


class MpModelWrapper:
    """A model created before the processes start, so that forked processes share its memory until they write to it.

    `.to(device)` moves the model in one process after the other, so that host memory never holds all copies at once.

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
        """Move the model to `device`, and return it."""
        with self._lock:
            return self._model.to(device)


class MpSerialExecutor:
    """Call a function in one process after the other, such as a function that downloads a data set.

    Create this object before the processes start.

    >>> import torch_xla.distributed.xla_multiprocessing as xmp
    >>> serial = xmp.MpSerialExecutor()
    >>> serial.run(lambda: 1 + 1)
    2
    """

    def __init__(self) -> None:
        self._lock = _LOCKS.Lock()

    def run(self, fn: Callable[[], object]) -> object:
        """Return `fn()`, while no other process is in `run` of this object."""
        with self._lock:
            return fn()
