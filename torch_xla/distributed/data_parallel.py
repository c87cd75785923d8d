"""Run a loop over the batches of a loader, for one epoch, on the device of this process: `DataParallel`.

In earlier releases, training on several devices used one thread for each device. Now each process has one device,
`torch_xla.launch` starts one process for each device, and this class runs the loop in each process.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from .._engine.pytree import collected_tensors as collected
from .parallel_loader import ParallelLoader

T = TypeVar("T")


class Context:
    """State of a loop that is kept from one epoch to the next, as attributes, such as an optimizer.

    >>> context = Context(torch.device("cpu"))
    >>> context.getattr_or("losses", list)
    []
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def getattr_or(self, name: str, defval: T) -> object:
        """Return the attribute `name`. If it does not exist, first set it to `defval` or its result."""
        if getattr(self, name, None) is None:
            setattr(self, name, defval() if callable(defval) else defval)
        return getattr(self, name)


@dataclass
class ThreadResult:
    """The result of a loop, as `result`."""

    result: object = None


class DataParallel:
    """Run `loop_fn(model, loader, device, context)` over the batches of a loader, once per call.

    `network` is a module, whose copy is moved to the device, or a function without arguments that returns a module.
    `device_ids` is a list with one device, as a `torch.device` or a string; `None` means the device of this process.
    With an empty list, `network` itself runs on its current device: the CPU, if it was not moved. Other arguments are
    passed to `torch_xla.distributed.parallel_loader.ParallelLoader`. Raises `ValueError` for several devices: start one
    process for each device by `torch_xla.launch`, and end each step in `loop_fn` by `xm.optimizer_step`.

    >>> import torch, torch_xla
    >>> train = DataParallel(torch.nn.Linear(2, 1), device_ids=["xla:0"])
    >>> def loop(model, loader, device, context): return [model(batch).shape[0] for batch in loader]
    >>> train(loop, [torch.ones(3, 2), torch.ones(4, 2)])
    [[3, 4]]
    """

    def __init__(
        self,
        network: nn.Module | Callable[[], nn.Module],
        device_ids: Sequence[str | torch.device] | None = None,
        **kwargs: Any,
    ) -> None:
        named = ["xla"] if device_ids is None else [str(each) for each in device_ids]
        if len(named) > 1:
            raise ValueError(
                f"DataParallel: device_ids names {len(named)} devices, {named}; a process has one. Start a process for "
                f"each device by torch_xla.launch(fn), and make DataParallel(network) in each"
            )
        module = network if isinstance(network, nn.Module) else network()
        self._in_place = not named
        self._device = torch.device(named[0]) if named else _device_of(module)
        self._model = module if self._in_place else copy.deepcopy(module).to(self._device)
        self._context = Context(self._device)
        self._kwargs = kwargs

    @property
    def devices(self) -> list[torch.device]:
        """Return the device, in a list."""
        return [self._device]

    @property
    def models(self) -> list[nn.Module]:
        """Return the model on the device, in a list."""
        return [self._model]

    def __call__(
        self,
        loop_fn: Callable[..., Any],
        loader: Iterable[Any],
        batchdim: int = 0,
        *,
        fixed_batch_size: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Run one epoch, and return the result of `loop_fn(model, loader, device, context, **kwargs)` in a list.

        With `fixed_batch_size`, skip a last batch that is smaller along `batchdim`.
        """
        if isinstance(batchdim, bool):
            raise TypeError(
                f"DataParallel()(loop_fn, loader, {batchdim}): the third argument is batchdim, a dimension; write "
                f"fixed_batch_size={batchdim}"
            )
        batches = _equal(loader, batchdim) if fixed_batch_size else loader
        result = ThreadResult()
        if self._in_place:
            result.result = loop_fn(self._model, batches, self._device, self._context, **kwargs)
        else:
            with_uploads = ParallelLoader(batches, [self._device], batchdim=batchdim, **self._kwargs)
            try:
                own = with_uploads.per_device_loader(self._device)
                result.result = loop_fn(self._model, own, self._device, self._context, **kwargs)
            finally:
                with_uploads.close()
        return [result.result]


def _device_of(module: nn.Module) -> torch.device:
    found = {parameter.device for parameter in module.parameters()}
    if len(found) > 1:
        raise RuntimeError(f"DataParallel: the model is on several devices, {sorted(map(str, found))}; move it to one")
    return found.pop() if found else torch.device("cpu")


def _equal(loader: Iterable[object], dim: int) -> Iterator[object]:
    """Yield the batches of a loader until one whose first tensor is smaller than that of the first batch."""
    first = None
    for batch in loader:
        size = collected(batch, lambda tensor: True)[0].shape[dim]
        first = size if first is None else first
        if size != first:
            return
        yield batch
