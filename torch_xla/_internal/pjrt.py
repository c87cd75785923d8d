"""Start processes, under the old internal name. Programs call `torch_xla.launch` or `xmp.spawn`."""

from collections.abc import Callable, Iterable

from .._engine import distributed
from .._engine.compat import removed_names
from ..distributed.xla_multiprocessing import spawn as _spawn

__getattr__ = removed_names.asked_of(__name__)


def spawn(
    fn: Callable[..., object], nprocs: int | None = None, start_method: str = "spawn", args: Iterable[object] = ()
) -> None:
    """Call `fn(index, *args)` for each device, as `torch_xla.distributed.xla_multiprocessing.spawn` does.

    >>> from torch_xla._internal import pjrt
    >>> pjrt.spawn(lambda index, word: print(index, word), nprocs=1, args=("here",))
    0 here
    """
    _spawn(fn, args, nprocs, start_method=start_method)


def run_multiprocess(
    fn: Callable[..., object], *args: object, start_method: str = "spawn", **kwargs: object
) -> dict[int, object]:
    """Run `fn(*args, **kwargs)` in one process for each device, and return the results by the processes' ordinals.

    With one device, `fn` runs in this process. Results must be picklable. Raises the exceptions of `spawn`.

    >>> from torch_xla._internal import pjrt
    >>> pjrt.run_multiprocess(sum, [1, 2])
    {0: 3}
    """
    return distributed.launch_results(fn, args, kwargs, start_method)
