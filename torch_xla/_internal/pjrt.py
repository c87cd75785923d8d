"""Starting processes by the old internal path: `torch_xla.launch` and `xmp.spawn` are what programs call."""

from collections.abc import Callable, Iterable
from typing import Any

from .._engine.compat import removed_names
from .._engine.distributed import process_launch
from ..distributed.xla_multiprocessing import spawn as _spawn

__getattr__ = removed_names.asked_of(__name__)


def spawn(
    fn: Callable[..., Any], nprocs: int | None = None, start_method: str = "spawn", args: Iterable[Any] = ()
) -> None:
    """Calls `fn(index, *args)` for each device, as `torch_xla.distributed.xla_multiprocessing.spawn` does.

    >>> from torch_xla._internal import pjrt
    >>> pjrt.spawn(lambda index, word: print(index, word), nprocs=1, args=("here",))
    0 here
    """
    _spawn(fn, args, nprocs, start_method=start_method)


def run_multiprocess(fn: Callable[..., Any], *args: Any, start_method: str = "spawn", **kwargs: Any) -> dict[int, Any]:
    """What `fn(*args, **kwargs)` returned in a process for each device, by the global ordinal of the process.

    With one device it is called in this process. What is returned must be picklable. Raises what `spawn` does.

    >>> from torch_xla._internal import pjrt
    >>> pjrt.run_multiprocess(sum, [1, 2])
    {0: 3}
    """
    return process_launch.results(fn, args, kwargs, start_method)
