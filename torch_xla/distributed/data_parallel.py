"""`DataParallel`: one epoch of a loop over the batches of a loader, on the device of this process.

The older way to train on several devices was a thread for each. Here each process has one device, and
`torch_xla.launch` starts as many processes as there are devices; in each of them this class runs the loop.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .._engine.pytree.nested import collected
from .parallel_loader import ParallelLoader


class Context:
    """What a loop keeps from one epoch to the next, as attributes: an optimizer, a tracker of rates.

    >>> context = Context(torch.device("cpu"))
    >>> context.getattr_or("losses", list)
    []
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def getattr_or(self, name: str, defval: Any) -> Any:
        """The attribute `name`; if there is none, it becomes `defval`, or what it returns if it can be called."""
        if getattr(self, name, None) is None:
            setattr(self, name, defval() if callable(defval) else defval)
        return getattr(self, name)


@dataclass
class ThreadResult:
    """What a loop returned: `result`."""

    result: Any = None


class DataParallel:
    """Runs `loop_fn(self._model, loader, device, context)` over the batches of a loader, once a call.

    `network` is a module, of which a copy is moved to the device, or a function without arguments that makes one.
    `device_ids` names the device, as a `torch.device` or a string in a list; `None` means the device of this process.
    With an empty list `network` itself runs where it is: the CPU, if it was not moved. Other
    arguments go to `torch_xla.distributed.parallel_loader.ParallelLoader`. Raises `ValueError` for several devices:
    start a process for each by `torch_xla.launch`, and let `loop_fn` end a step by `xm.optimizer_step`.

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
        """The device, in a list."""
        return [self._device]

    @property
    def models(self) -> list[nn.Module]:
        """The model on the device, in a list."""
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
        """One epoch: what `loop_fn(model, loader, device, context, **kwargs)` returns, in a list.

        With `fixed_batch_size` a last batch that is smaller along `batchdim` is left out.
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


def _equal(loader: Iterable[Any], dim: int) -> Iterator[Any]:
    """The batches of a loader up to one whose first tensor is smaller than that of the first batch."""
    first = None
    for batch in loader:
        size = collected(batch, lambda tensor: True)[0].shape[dim]
        first = size if first is None else first
        if size != first:
            return
        yield batch
