"""Start JAX's coordination service, by which the processes of a program find each other.

`jax.distributed.initialize` makes a client that ends its process by SIGABRT when another process is lost, and a service
that listens on every address of the machine and ends with the process that started it: then all others end by SIGABRT.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
from jax._src import distributed, xla_bridge
from jax._src.lib import _jax  # type: ignore[attr-defined]

# Seconds until XLA's own heartbeat ends a missing process. The processes watch each other and their connections
# (`processes/heartbeats.py`).
SILENCE = 7 * 24 * 3600

# The service imports with this process's path; its own folder is not on it, because `jax.py` would be found there.
_START = """
import json, runpy, sys
sys.path[:] = json.loads(sys.argv.pop(1))
runpy.run_path(sys.argv.pop(1), {}, "__main__")
"""


# JAX's settings of mutual TLS, without the prefix `jax_`. JAX before 0.12 has none of them.
TLS = ("mtls_cert_file", "mtls_key_file", "mtls_ca_file", "mtls_peer_uri_prefix")
_REFUSES_PLAIN = "distributed_verify_secure_credentials"


def tls() -> dict[str, str]:
    """Return JAX's settings of mutual TLS that are set, by name."""
    values = jax.config.values
    return {name: str(values[f"jax_{name}"]) for name in TLS if values.get(f"jax_{name}")}


def refuses_plain() -> bool:
    """Return whether JAX's settings ask that no connection is made without TLS."""
    return bool(jax.config.values.get(f"jax_{_REFUSES_PLAIN}"))


class Service:
    """The service in its own process, which ends after this process has ended and no connection is left."""

    def __init__(self, host: str, port: int, count: int, start: int) -> None:
        arguments = [host, *map(str, (port, count, SILENCE, start)), json.dumps(tls())]
        program = str(Path(__file__).with_name("jax_coordination_server.py"))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, json.dumps(sys.path), program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # who ends this one and its group leaves it to the others
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        """Where it listens."""
        if not self.address or self.address.startswith("error "):
            self.shutdown()
            raise RuntimeError(self.address.removeprefix("error ") or "the process of the service did not start")

    def shutdown(self) -> None:
        """Let the service end when the others have left it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.returncode = self._process.poll() or 0  # it is not waited for, on purpose


def connect(address: str, index: int, count: int, start: int) -> object:
    """Return the client of process `index` of `count`, connected.

    It becomes JAX's own, so that the backends that start later know of the other processes.
    """
    client = _jax.get_distributed_runtime_client(
        address,
        index,
        init_timeout=start,
        heartbeat_timeout=SILENCE,
        shutdown_on_destruction=False,
        use_compression=True,
        **tls(),
    )
    client.connect()
    state = distributed.global_state
    state.client, state.process_id, state.num_processes, state.coordinator_address = client, index, count, address
    return client


class PreemptionNotifier:
    """JAX's service that catches SIGTERM, which knows of this process alone.

    JAX lets it agree with other processes as well, by the client of the program. But `reached_sync_point` waits, while
    it holds Python's lock, for messages to them, and the proxy that would pass these on is written in Python.
    """

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self._service = _jax.get_distributed_runtime_service(address, 1, **tls())
        self._client = _jax.get_distributed_runtime_client(
            address, 0, init_timeout=60, heartbeat_timeout=SILENCE, shutdown_on_destruction=False, **tls()
        )
        self._client.connect()
        self._manager = _jax.create_preemption_sync_manager()
        self._manager.initialize(self._client)

    def is_step(self, number: int) -> bool:
        """Return whether this process ends at the step with this number: true once. Steps are counted one by one."""
        return bool(self._manager.reached_sync_point(number))

    def end(self) -> None:
        """Leave SIGTERM to others."""
        self._manager.shutdown()
        self._client.shutdown()
        self._service.shutdown()


class PreemptionSteps:
    """What JAX asks for the step to end at, where `is_reached(step)` knows it."""

    def __init__(self, is_reached: Callable[[int], bool]) -> None:
        self.reached_sync_point = is_reached

    def shutdown(self) -> None:
        """Do nothing: JAX calls this at the end of its own services."""


def answer_preemption(is_reached: Callable[[int], bool] | None) -> None:
    """Let `multihost_utils.reached_preemption_sync_point(step)` of JAX return `is_reached(step)`; end that by None."""
    state = distributed.global_state
    state.preemption_sync_manager = PreemptionSteps(is_reached) if is_reached is not None else None


def disconnect() -> None:
    """End the client."""
    client, distributed.global_state.client = distributed.global_state.client, None
    if client is not None:
        client.shutdown()


def is_connected() -> bool:
    """Return whether JAX knows other processes, from us or from `jax.distributed.initialize`."""
    return distributed.global_state.client is not None


def listen_on(hostname: str) -> None:
    """Let the collectives of the CPU client, which has not started, listen on one address of this machine."""

    def client(of: object) -> object:
        return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(of, hostname=hostname))

    xla_bridge.register_backend_factory("cpu", partial(client, distributed.global_state.client), fail_quietly=False)
