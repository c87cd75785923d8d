"""Ask JAX which process of a cluster job this is (SLURM, Open MPI)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax._src.clusters import ClusterEnv

# JAX's cluster types that start processes and number them in variables. On Kubernetes `torchrun` does this.
_NAMES = ("slurm", "ompi")


class Job(NamedTuple):
    """The place of this process in a cluster job."""

    cluster: str
    address: Callable[[], str]  # host and port at which the first process can be found
    rank: int
    size: int


def job() -> Job | None:
    """Return this process's place in the cluster job that started it, if any."""
    kinds: list[Any] = [each for each in ClusterEnv._cluster_types if each.name in _NAMES and each.is_env_present()]
    for kind in kinds:
        count = kind.get_process_count()
        if count > 1:
            return Job(kind.name, lambda: kind.get_coordinator_address(None, None), kind.get_process_id(), count)  # noqa: B023
    return None
