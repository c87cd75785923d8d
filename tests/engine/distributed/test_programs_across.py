"""Programs that several processes run together: each on arrays of its own, with collectives between them."""

import gc
from typing import Any

import jax
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from tests.support.fleet import fleet_of
from torch_xla._engine.dispatch.kernels import append
from torch_xla._engine.graph import effect
from torch_xla._engine.graph.plan import Operand, Plan, interned
from torch_xla._engine.lowering import replicas
from torch_xla._engine.lowering.registry import lowers, rule_of
from torch_xla._engine.record.storage import snapshot, wrap

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
