"""`torch.distributed.init_process_group("xla")`: register the backend and the `xla://` rendezvous."""

import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from ..compat.names import torch_distributed
from ..processes import coordination, identity
from .cluster_processes import join as join_cluster
from .cluster_processes import join_job
from .ddp_unused_parameters import install as install_ddp_reducer
from .framework_lists import complete as complete_framework_lists
from .point_to_point import batch as batch_messages
from .process_group import XlaGroup
from .staged_collectives import register as register_staged_collectives

_registered = False


def register(group: Callable[..., XlaGroup] = XlaGroup) -> None:
    """Register the backend "xla" with `torch.distributed`, once. `group` creates a process group."""
    global _registered
    if _registered:
        return
    _registered = True
    torch_distributed.register_group("xla", partial(_create, group))
    for scheme in ("xla", "pjrt"):
        torch_distributed.register_rendezvous_handler(scheme, meet)
    complete_framework_lists()
    register_staged_collectives()
    install_ddp_reducer()


@functools.cache
def _patch() -> None:
    """Replace, with the first group, what PyTorch does for groups in C++ alone: programs without one keep PyTorch's."""
    torch_distributed.give_batches_end(XlaGroup, batch_messages)
    torch_distributed.keep_objects_on_host(XlaGroup)
    torch_distributed.give_gather_results()


def _create(group: Callable[..., XlaGroup], options: Any, own: object = None) -> XlaGroup:
    _patch()
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if identity.process_count() == 1 and options.group_size > 1:
        join_cluster(options.store, options.group_rank, options.group_size)
    count = identity.process_count()
    if max(ranks) >= count or ranks[options.group_rank] != identity.process_index():
        raise RuntimeError(
            f"init_process_group('xla'): rank {options.group_rank} of {options.group_size} was asked for, and this is "
            f"process {identity.process_index()} of {count}. Leave rank and world_size out (init_method='xla://')."
        )
    return group(options.group_rank, ranks, options.timeout, options.store)


def meet(url: str, timeout: object = None, **kwargs: object) -> Iterator[tuple[Any, int, int]]:
    """Yield, once, the store of the program's processes, the place of this one, and their number."""
    if identity.process_count() == 1:
        join_job()
    place = identity.place()
    if place.count == 1:
        store: Any = HashStore()
    elif (meeting := identity.meeting()) is not None:
        store = PrefixStore("c10d", meeting.store())
    else:
        store, _, _ = next(iter(torch_distributed.rendezvous("env://")))
        # The prefix separates this start from the entries of earlier starts.
        store = PrefixStore(coordination.attempt(), store)
    yield store, place.index, place.count
    raise RuntimeError("The processes of a program on xla do not meet a second time.")


def distribute_tensor(tensor: object, mesh: object, placements: object) -> Any:
    """Return a `DTensor` over the processes of a mesh of `xla` devices."""
    return torch_distributed.distributed("distribute_tensor", tensor, mesh, placements)


def distribute_module(module: object, mesh: object, partition_fn: object, input_fn: object, output_fn: object) -> Any:
    """Return the module with its parameters distributed over the processes of a mesh of `xla` devices."""
    return torch_distributed.distributed("distribute_module", module, mesh, partition_fn, input_fn, output_fn)
