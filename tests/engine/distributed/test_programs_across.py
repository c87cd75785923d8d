"""Programs that several processes run together: each on arrays of its own, with collectives between them."""

import gc
import time
from typing import Any

import jax
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from tests.support.fleet import fleet_of
from torch_xla._engine.dispatch.kernels import append
from torch_xla._engine.execute import executor
from torch_xla._engine.graph import effect
from torch_xla._engine.graph.plan import Operand, Plan, interned
from torch_xla._engine.lowering import replicas
from torch_xla._engine.lowering.registry import lowers, rule_of
from torch_xla._engine.record.storage import snapshot, wrap
from torch_xla._engine.record.sync import clear_schedules

SUM = "test::sum_of_replicas"


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of the tensors of all processes, as any collective is recorded."""
    if rule_of(SUM) is None:
        lowers(SUM)(lambda x: replicas.in_order(lambda y: jax.lax.psum(y, replicas.axis()), x))
    value = snapshot(tensor)
    plan = interned(Plan(SUM, ((Operand(0),), {}), (value.spec,), (), (value.spec,), effect=effect.collective()))
    return wrap(append(plan, ([], [value], []), value.device)[0])


def everything() -> dict[str, Any]:
    rank = xr.global_ordinal()
    x = torch.full((2, 3), float(rank + 1), device="xla")
    scalar = torch.tensor(rank + 1.5, device="xla")
    total, of_scalar = summed(x * 2), summed(scalar)
    found: dict[str, Any] = {
        "total": total.tolist(),
        "scalar": of_scalar.item(),
        "own scalar": scalar.item(),
        "empty": list(summed(torch.zeros(0, 3, device="xla")).shape),
        "int64": summed(torch.tensor([1 << 40, rank], device="xla")).tolist(),
    }
    noise = torch.rand(2, device="xla") * 0 + rank
    found["with random numbers"] = (summed(noise) * 1.5).tolist()
    for step in range(3):
        found[f"number {step}"] = summed(x[0] * (step + 0.5) + rank).tolist()
    # A parameter written in place, whose memory is given to the next.
    weight = torch.zeros(4, device="xla")
    for _ in range(3):
        weight.add_(summed(torch.full((4,), rank + 1.0, device="xla")))
        torch_xla.sync()
    found["weight"] = weight.tolist()
    found["alone"] = (x + 1).sum().item()
    return found


def test_a_program_with_a_collective_runs_on_the_arrays_of_each_process() -> None:
    for rank, found in enumerate(fleet_of(2).run(everything)):
        assert found == {
            "total": [[6.0] * 3] * 2,
            "scalar": 4.0,
            "own scalar": rank + 1.5,
            "empty": [0, 3],
            "int64": [1 << 41, 1],
            "with random numbers": [1.5, 1.5],
            "number 0": [2.5] * 3,
            "number 1": [5.5] * 3,
            "number 2": [8.5] * 3,
            "weight": [9.0] * 4,
            "alone": 6.0 * (rank + 2),
        }


def ignoring() -> list[float]:
    rank = xr.global_ordinal()
    x = torch.full((2,), float(rank + 1), device="xla")
    made = summed(x)
    if rank == 1:
        del made  # nobody holds it here
        gc.collect()
    torch_xla.sync(wait=True)
    return [float(summed(x).sum())]


def test_a_process_that_ignores_a_result_takes_part_all_the_same() -> None:
    assert fleet_of(2).run(ignoring) == [[6.0], [6.0]]


def replayed() -> tuple[list[float], bool]:
    rank = xr.global_ordinal()
    state = torch.zeros(3, device="xla")

    def step(x: torch.Tensor) -> torch.Tensor:
        state.add_(summed(x))
        return state.sum()

    compiled: Any = torch_xla.compile(step, replay=True)
    found = [float(compiled(torch.full((3,), float(rank + n), device="xla"))) for n in range(6)]
    xm.wait_device_ops()
    return found, compiled.is_replayed


def test_a_replay_runs_collectives() -> None:
    expected = [3.0 * sum(2 * k + 1 for k in range(n + 1)) for n in range(6)]
    assert fleet_of(2).run(replayed) == [(expected, True)] * 2


class _Cycle:
    """Holds a tensor until garbage is collected."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.itself = tensor, self


def _what_is_this_process_own(differs: bool, step: int) -> None:
    """Its caches, its history and its time."""
    if differs and step in (2, 5):
        clear_schedules()
    if differs and step % 2:
        time.sleep(0.05)
    if differs:
        (torch.ones(3, device="xla") * (step + 0.25)).sum().item()


def keys_of_a_script() -> tuple[list[str], list[list[float]]]:
    differs = xr.global_ordinal() == 1
    run, keys = executor.run, []

    def noting(program: Any, buffers: Any, numbers: Any, *rest: Any) -> None:
        run(program, buffers, numbers, *rest)
        if program.graph.is_collective:
            keys.append(program.key_for(numbers).digest)

    found = []
    weight = torch.linspace(0, 1, 4, device="xla")
    if differs:  # a history of numbers
        (torch.ones(4, device="xla") * 0.125).cos().sum().item()
    executor.run = noting  # type: ignore[assignment]
    gc.disable()
    try:
        for step in range(8):
            _what_is_this_process_own(differs, step)
            gradient = weight * (0.5 + step) + torch.rand(4, device="xla") * 0
            activation = _Cycle(gradient.cos() * 3)  # garbage, once its name is another's
            if differs:
                gc.collect()
            weight = weight - 0.01 * summed(gradient)
            kept = (
                activation.tensor if step in (3, 6) else None
            )  # held by the script in some steps, by garbage in others
            torch_xla.sync()
            found.append(weight.tolist())
            del kept
    finally:
        gc.enable()
        executor.run = run
    return keys, found


def test_what_is_local_decides_about_no_program_of_several_processes() -> None:
    (keys, found), (theirs, also) = fleet_of(2).run(keys_of_a_script)
    assert found == also
    assert keys == theirs and len(keys) == 8
    assert len(set(keys)) < 8
