"""The service by which processes find each other is a process of its own, and JAX knows of its connection."""

import socket
import time
from typing import Any

import jax
import pytest
from jax._src import distributed

from torch_xla._engine.compat.names import jax_coordination


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Any:
    """JAX's own record, which is afterwards what it was."""
    for name in ("client", "process_id", "num_processes", "coordinator_address"):
        monkeypatch.setattr(distributed.global_state, name, getattr(distributed.global_state, name))
    return distributed.global_state


def test_a_client_connects_to_it_speaks_and_leaves(state: Any) -> None:
    service = jax_coordination.Service("127.0.0.1", 0, 1, 20)
    try:
        assert service.address.startswith("127.0.0.1:") and not jax_coordination.is_connected()
        client = jax_coordination.connect(service.address, 0, 1, 20)
        assert jax_coordination.is_connected() and state.client is client
        assert (state.process_id, state.num_processes, state.coordinator_address) == (0, 1, service.address)
        client.key_value_set("name", "value")
        assert client.blocking_key_value_get("name", 1000) == "value"
        with pytest.raises(jax.errors.JaxRuntimeError, match="DEADLINE"):  # the time is over by then
            client.blocking_key_value_get("nothing", 10)
        jax_coordination.disconnect()
        assert not jax_coordination.is_connected()
        jax_coordination.disconnect()  # once more does nothing
    finally:
        service.shutdown()


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=rf"^127.0.0.1:{port}: .*in use"):
            jax_coordination.Service("127.0.0.1", port, 1, 20)
        assert time.monotonic() - start < 30
