"""Makes `torch.distributed.init_process_group("xla")` work: the backend, and the `xla://` way to find each other."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from ..client import coordination, processes
from ..private import c10d
from . import cluster, messages, reducer
from .process_group import XlaGroup

_registered = False


def register(group: Callable[..., XlaGroup] = XlaGroup) -> None:
    """Registers the backend "xla" with `torch.distributed`, once. `group` makes a process group."""
    global _registered
    if _registered:
        return
    _registered = True
    c10d.register_group("xla", partial(_create, group))
    for scheme in ("xla", "pjrt"):
        c10d.register_rendezvous_handler(scheme, meet)
    reducer.install()
    c10d.give_batches_end(XlaGroup, messages.batch)
    c10d.keep_objects_on_host(XlaGroup)
    c10d.give_gather_results()


def _create(group: Callable[..., XlaGroup], options: Any, own: Any = None) -> XlaGroup:
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if processes.process_count() == 1 and options.group_size > 1:
        cluster.join(options.store, options.group_rank, options.group_size)
    count = processes.process_count()
    if max(ranks) >= count or ranks[options.group_rank] != processes.process_index():
        raise RuntimeError(
            f"init_process_group('xla'): rank {options.group_rank} of {options.group_size} was asked for, and this is "
            f"process {processes.process_index()} of {count}. Leave rank and world_size out (init_method='xla://')."
        )
    return group(options.group_rank, ranks, options.timeout, options.store)


def meet(url: str, timeout: Any = None, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
    """Yields once the store by which the processes of the program speak, the place of this one, and their number."""
    if processes.process_count() == 1:
        cluster.join_job()
    place = processes.place()
    if place.count == 1:
        store: Any = HashStore()
    elif processes.meet is not None:
        store = PrefixStore("c10d", processes.meet())
    else:
        store, _, _ = next(iter(c10d.rendezvous("env://")))
        # What lies there of a start before this one is not for this one.
        store = PrefixStore(coordination.attempt(), store)
    yield store, place.index, place.count
    raise RuntimeError("The processes of a program on xla do not meet a second time.")


def distribute_tensor(tensor: Any, mesh: Any, placements: Any) -> Any:
    """A `DTensor` over the processes of a mesh of `xla` devices."""
    return c10d.distributed("distribute_tensor", tensor, mesh, placements)


def distribute_module(module: Any, mesh: Any, partition_fn: Any, input_fn: Any, output_fn: Any) -> Any:
    """The module with its parameters distributed over the processes of a mesh of `xla` devices."""
    return c10d.distributed("distribute_module", module, mesh, partition_fn, input_fn, output_fn)
