"""No more runs wait on several devices of the host than XLA's client takes: one more, and they wait for ever."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.support import parts
from torch_xla._engine.compat.names.jax_starters import starter_in_turn
from torch_xla._engine.runtime import launch_throttle
from torch_xla._engine.step import waits_among_processes


@pytest.mark.slow
@pytest.mark.parametrize("name", parts.names("many_runs"))
def test_many_runs_over_four_devices(name: str) -> None:
    parts.check("many_runs", name)


def test_a_run_that_failed_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fail() -> None:
        asked.append("failed")
        raise jax.errors.JaxRuntimeError("INTERNAL: it failed")

    monkeypatch.setattr(launch_throttle, "last", launch_throttle.last.copy())
    launch_throttle.last[0] = SimpleNamespace(block_until_ready=fail)
    launch_throttle.last[3] = SimpleNamespace(block_until_ready=lambda: asked.append("ended"))
    assert not waits_among_processes.may_launch(1)
    waits_among_processes.wait_for_launch(2)
    assert waits_among_processes.may_launch(3) and not waits_among_processes.may_launch(100)
    waits_among_processes.wait_for_launch(100)
    assert waits_among_processes.may_launch(100)
    assert asked == ["failed", "ended"]


@pytest.mark.parametrize("calls_back", [False, True])
def test_a_run_waits_for_the_first_and_is_noted(calls_back: bool) -> None:
    seen: list[object] = []

    def add(x: jax.Array) -> tuple[jax.Array]:
        if calls_back:
            jax.debug.callback(lambda x: seen.append(x.tolist()), x)
        return (x + 1,)

    x = jnp.arange(3.0)
    first = SimpleNamespace(block_until_ready=lambda: seen.append("waited"))
    last: deque[Any] = deque([first, None], maxlen=2)
    start = starter_in_turn(jax.jit(add, keep_unused=True).trace(x).lower().compile(), last)
    assert start is not None
    ((result,),) = start([[x]])
    assert last[0] is None
    last[1].block_until_ready()
    jax.effects_barrier()
    assert result.tolist() == [1, 2, 3] and seen == (["waited", [0, 1, 2]] if calls_back else ["waited"])
