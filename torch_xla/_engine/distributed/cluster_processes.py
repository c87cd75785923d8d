"""Join processes that a cluster's scheduler, or a user who gives rank and count, has started."""

import datetime
import functools
import json
import socket
import time
from functools import partial
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from .. import config
from ..compat.names import jax_clusters
from ..errors import PeerError
from ..processes import identity, store_rendezvous
from ..processes.identity import Place
from ..runtime import platform

_HOST = "torch_xla/host"


@functools.cache
def join_job() -> bool:
    """Take this process's place from SLURM or Open MPI, once; return whether one of them has started it."""
    found = jax_clusters.job()
    if found is None or identity.process_count() > 1:
        return False
    address = found.address()
    host, _, port = address.rpartition(":")
    if not 0 <= found.rank < found.size:
        raise RuntimeError(f"{found.cluster} says that this is process {found.rank} of {found.size}: it cannot be.")
    join(_store(host, int(port), found.rank == 0, address), found.rank, found.size)
    return True


def _store(host: str, port: int, is_first: bool, address: str) -> TCPStore:
    seconds = datetime.timedelta(seconds=config.distributed_start_seconds())
    if not is_first:
        return TCPStore(host, port, is_master=False, timeout=seconds)
    try:
        # On the one address by which the others come, not on all of this machine.
        listener = socket.create_server((host, port))
    except OSError as error:
        raise RuntimeError(
            f"Cannot listen on {address} ({error}), where the other processes of the job look for the first one. Is it "
            f"left over from an earlier run, or does process 0 run on another machine?"
        ) from error
    return TCPStore(
        host, port, is_master=True, timeout=seconds, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def join(store: Any, rank: int, size: int) -> None:
    """Make this process one of `size` processes, which find each other through `store`."""
    if platform.is_started():
        raise RuntimeError(
            f"This process used an xla device before it knew that it is process {rank} of {size}. Call "
            f"init_process_group or torch_xla.launch first."
        )
    host = socket.gethostname()
    store.set(f"{_HOST}/{rank}", json.dumps([size, host]))
    hosts = _hosts(store, rank, size)
    local = [index for index, each in enumerate(hosts) if each == host]
    machines = list(dict.fromkeys(hosts))
    address = "127.0.0.1" if len(machines) == 1 else socket.gethostbyname(hosts[0])
    place = Place(rank, size, local.index(rank), len(local), machines.index(host), address)
    identity.take(place, partial(PrefixStore, "torch_xla", store), False)


def _hosts(store: Any, rank: int, size: int) -> list[str]:
    """Return the machine of each process. Raises `PeerError` that names those who do not come, or think of another
    number.
    """
    seconds = config.distributed_start_seconds()
    end, found = time.monotonic() + seconds, []
    for index in range(size):
        key = f"{_HOST}/{index}"
        try:
            store.wait([key], datetime.timedelta(seconds=max(1.0, end - time.monotonic())))
            other, host = json.loads(store.get(key))
        except RuntimeError as error:
            raise store_rendezvous.missed(store, Place(rank, size), _HOST, seconds) from error
        if other != size:
            raise PeerError(store_rendezvous.other_count(rank, size, index, other))
        found.append(host)
    return found
