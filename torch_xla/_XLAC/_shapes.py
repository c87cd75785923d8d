"""The extension's functions about sizes that change: marks of dimensions, and sessions that count graphs."""

import torch

from .._engine.compat.names.torch import mark_dynamic
from .._engine.compiled.region import Region

_most = 1
_sessions: dict[str, Region] = {}
_open: list[Region] = []


def _xla_mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Mark a dimension of a tensor as one that changes from call to call, as `torch._dynamo.mark_dynamic` does.

    `torch_xla.experimental.buckets.bucketed` pads what is marked, and `torch.compile` traces it once for all sizes.
    Recorded operations have the size that the tensor has. Raises `IndexError` for a dimension that is not there.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.buckets import bucketed
    >>> mean, x = bucketed(lambda x: x.mean(0)), torch.arange(3.0)
    >>> torch_xla._XLAC._xla_mark_dynamic(x, 0)
    >>> mean(x), mean(torch.arange(4.0))
    (tensor(1., device='xla:0'), tensor(1.5000, device='xla:0'))
    """
    count = tensor.dim()
    if not -count <= dim < count:
        raise IndexError(
            f"_xla_mark_dynamic(): dimension {dim} of a tensor of shape {list(tensor.shape)}: it has {count} dimensions"
        )
    mark_dynamic(tensor, dim % count)


def set_most_graphs(most: int) -> None:
    """Set the number of different graphs that each session started from now on may record."""
    global _most
    _most = most


def most_graphs() -> int:
    """Return the number of different graphs that a session may record; by default 1."""
    return _most


def _dynamic_shape_detector_start_session(name: str) -> None:
    """Begin a region whose graphs are counted, with those of earlier sessions of this name.

    `torch_xla.compile(name=name, num_different_graphs_allowed=most)` does so around a function or a block.
    """
    region = _sessions.setdefault(name, Region(name, most_graphs=_most))
    region.__enter__()
    _open.append(region)


def _dynamic_shape_detector_end_session() -> None:
    """End the region, and the step. Raises `RuntimeError` if its graph is one too many.

    >>> import torch, torch_xla
    >>> from torch_xla import _XLAC
    >>> for size in (2, 2, 3):
    ...     _XLAC._dynamic_shape_detector_start_session("forward")
    ...     x = torch.ones(size, device="xla") * 2
    ...     _XLAC._dynamic_shape_detector_end_session()
    Traceback (most recent call last):
    RuntimeError: forward: 1 different graphs were allowed, and this call recorded graph number 2: ...
    """
    if not _open:
        raise RuntimeError("_dynamic_shape_detector_end_session(): no session was started")
    _open.pop().__exit__(None)


def _dynamic_shape_detector_remove_session(name: str) -> None:
    """Forget the graphs of a session. Raises `KeyError` if there was none of this name."""
    del _sessions[name]
