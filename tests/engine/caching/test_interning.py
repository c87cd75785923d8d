"""Tables of specs, views, plans and rules stay small, and what is in use stays in them."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import jax.numpy as jnp
import pytest
import torch

import torch_xla
from torch_xla._engine.caching import interning
from torch_xla._engine.interop import jax_functions
from torch_xla._engine.ir import call_plan, value_spec
from torch_xla._engine.lowering.machinery import registry
from torch_xla._engine.metrics import counters
from torch_xla._engine.step.schedule import clear_schedules
from torch_xla._engine.tensor import storage, views
from torch_xla.interop import call_jax


@pytest.fixture(autouse=True)
def nothing_recorded() -> Iterator[None]:
    forget()
    yield


def sizes() -> tuple[int, ...]:
    """Of the tables that hold one thing for each shape."""
    gc.collect()
    plans = sum(len(each) for table, plan_of in interning._plans for each, _ in interning._with_inner(table, plan_of))
    return (
        plans,
        len(value_spec._specs),
        len(views._views),
        len(registry._made),
        len(jax_functions.known),
        len(call_plan._plans),
    )


def forget() -> None:
    """Runs what is recorded, and forgets it: the last step is known to its device."""
    torch_xla.sync(wait=True)
    torch.ones(1, device="xla").sin_()
    torch_xla.sync(wait=True)
    clear_schedules()
    gc.collect()


def record(size: int) -> None:
    """Record calls of all kinds at a size, and drop their results."""
    x = torch.empty(size + 2, device="xla")
    x[1:] = x[:-1] + 1.0
    torch.arange(size, device="xla")
    torch.nn.functional.huber_loss(x, x)
    torch.special.entr(x)


def turn(first: int) -> tuple[int, ...]:
    """Records calls at ten sizes, forgets them, and returns what is left of them in the tables."""
    for size in range(first, first + 10):
        record(size)
        call_jax(lambda x: jnp.sin(x), torch.ones(size, device="xla"))
    forget()
    before = sizes()
    interning.drop_unused()
    after = sizes()
    assert after[0] < before[0] - 50 and after[1] < before[1] - 10 and after[2] < before[2] - 10, (before, after)
    assert after[3] <= before[3] - 10 and after[4] <= before[4] - 10, (before, after)
    return after


TURNS = """
import torch
from tests.engine.caching.test_interning import turn
settled = turn(1000)
assert all(now <= then + 2 for now, then in zip(turn(2000), settled, strict=True))
x = torch.arange(5.0, device="xla")
assert (x[1:] + x[:-1]).tolist() == [1.0, 3.0, 5.0, 7.0]
"""


@pytest.mark.slow
def test_shapes_that_nobody_uses_any_more_leave() -> None:
    # Alone, because what other tests have kept may hold, or let go of, plans in the middle.
    subprocess.run([sys.executable, "-c", TURNS], check=True)


ALONE = """
import torch, torch_xla
from torch_xla._engine.caching import interning
from torch_xla._engine.ir import value_spec
from torch_xla._engine.step.schedule import clear_schedules
interning.LEAST = 100
interning.drop_unused()
before = most = len(value_spec._specs)
between = interning._most
for size in range(5000, 5600):
    torch.empty(size, device="xla") + 1.0
    if size % 20 == 0:
        torch_xla.sync()
        clear_schedules()
    most = max(most, len(value_spec._specs))
print(before, between, most, len(value_spec._specs))
"""


@pytest.mark.slow
def test_they_leave_by_themselves() -> None:
    # Alone, because what other tests still use counts for when to look again.
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    before, between, most, after = map(int, done.stdout.split())
    # The values made between two checks, and those in use at either: since the last sync, 20 shapes ago.
    assert between == 100 and after <= most <= before + between + 2 * 20, (before, between, most, after)


@pytest.mark.slow
def test_ten_thousand_shapes_leave_memory_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interning, "LEAST", 2000)
    monkeypatch.setattr(registry, "_MOST_TRACES", 1000)
    interning.drop_unused()
    objects = []
    for turn in range(4):
        for size in range(2500):
            torch.empty(2500 * turn + size + 1, device="xla") + 1.0
            if size % 100 == 0:
                torch_xla.sync()
        forget()
        interning.drop_unused()
        gc.collect()
        objects.append(len(gc.get_objects()))
    # The first fill tables of JAX's that keep the latest 2048 or 4096.
    assert max(objects[2:]) - objects[1] < 5000, objects
    for size in (1, 5000, 10_000):
        assert (torch.ones(size, device="xla") + 1.0).sum().item() == 2 * size


def test_what_a_program_uses_stays() -> None:
    weight = torch.ones(7, 3, device="xla")
    held = weight.t()[1:]

    def step() -> torch.Tensor:
        scaled = torch.nn.functional.huber_loss(weight[1:].exp(), weight[:-1])
        counted = torch.arange(3, device="xla").sum()
        result = scaled + call_jax(jnp.sin, weight).sum() + counted
        torch_xla.sync(wait=True)
        return result

    first = step()
    value, view = storage.value_of(weight).spec, views.view_of(held)
    step()
    counters.clear()
    interning.drop_unused()
    assert value_spec.spec_of((7, 3), (3, 1), torch.float32) is value and views.view_of(held) is view
    torch.testing.assert_close(step().cpu(), first.cpu())
    assert not counters.value_of("UncachedCompile")
