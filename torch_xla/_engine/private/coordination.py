"""The service by which the processes of a JAX program find each other, started by hand.

`jax.distributed.initialize` makes a client that ends its process by SIGABRT when another process is lost, and a service
that listens on every address of the machine.
"""

from functools import partial
from typing import Any

from jax._src import distributed, xla_bridge
from jax._src.lib import _jax  # type: ignore[attr-defined]


def serve(address: str, count: int, heartbeat: int, start: int) -> Any:
    """Starts the service for `count` processes at `address` and returns it: `shutdown()` ends it. Times in seconds.

    Its tasks are recoverable: else a lost one would end all others by SIGABRT. The function that a client can call
    instead takes a status that Python has no type for.
    """
    return _jax.get_distributed_runtime_service(
        address, count, heartbeat_timeout=heartbeat, cluster_register_timeout=start, recoverable=True
    )


def connect(address: str, index: int, count: int, heartbeat: int, start: int) -> Any:
    """The client of process `index` of `count`, connected.

    It becomes JAX's own, so that the backends that start later know of the other processes.
    """
    client = _jax.get_distributed_runtime_client(
        address,
        index,
        init_timeout=start,
        heartbeat_timeout=heartbeat,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    state = distributed.global_state
    state.client, state.process_id, state.num_processes, state.coordinator_address = client, index, count, address
    return client


def disconnect() -> None:
    """Ends the client."""
    client, distributed.global_state.client = distributed.global_state.client, None
    if client is not None:
        client.shutdown()


def is_connected() -> bool:
    """Whether JAX knows of other processes, by us or by `jax.distributed.initialize`."""
    return distributed.global_state.client is not None


def listen_on(hostname: str) -> None:
    """Makes the collectives of the CPU client, which has not started, listen on one address of this machine."""

    def client(of: Any) -> Any:
        return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(of, hostname=hostname))

    xla_bridge.register_backend_factory("cpu", partial(client, distributed.global_state.client), fail_quietly=False)
