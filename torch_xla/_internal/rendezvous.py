"""The rendezvous of processes by `init_method="xla://"`, under the old internal name."""

from collections.abc import Iterator
from datetime import timedelta

from .._engine import distributed
from .._engine.compat import removed_names

__getattr__ = removed_names.asked_of(__name__)


def pjrt_rendezvous_handler(
    url: str, timeout: timedelta | None = None, **kwargs: object
) -> Iterator[tuple[object, int, int]]:
    """Yield, once, a store, the rank of this process and the number of processes. `torch.distributed` calls this.

    Rank and number come from `torch_xla.launch` or `torchrun`. `timeout` and `kwargs` have no effect.

    >>> from torch_xla._internal.rendezvous import pjrt_rendezvous_handler
    >>> store, rank, world_size = next(pjrt_rendezvous_handler("xla://"))
    >>> rank, world_size
    (0, 1)
    """
    return distributed.meet_for_process_group(url, timeout, **kwargs)
