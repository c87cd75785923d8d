"""Programs that several processes run together: each on arrays of its own, with collectives between them."""

import gc
import os
import time
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from tests.support.fleet import Fleet, fleet_of
from torch_xla._engine.compile.disk import cache_folder, disk_cache
from torch_xla._engine.dispatch.recording_kernel import append
from torch_xla._engine.errors import PeerError
from torch_xla._engine.ir import side_effects
from torch_xla._engine.ir.call_plan import Operand, Plan, interned
from torch_xla._engine.lowering.machinery import replica_axis
from torch_xla._engine.lowering.machinery.registry import lowers, rule_of
from torch_xla._engine.metrics import counters
from torch_xla._engine.step import sync
from torch_xla._engine.step.schedule import clear_schedules
from torch_xla._engine.step.step import Step
from torch_xla._engine.tensor.storage import snapshot, wrap

SUM = "test::sum_of_replicas"


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of the tensors of all processes, as any collective is recorded."""
    if rule_of(SUM) is None:
        lowers(SUM)(lambda x: replica_axis.in_order(lambda y: jax.lax.psum(y, replica_axis.axis()), x))
    value = snapshot(tensor)
    plan = interned(Plan(SUM, ((Operand(0),), {}), (value.spec,), (), (value.spec,), effect=side_effects.collective()))
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


@pytest.mark.slow
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


def trained_without_an_end_of_step() -> list[int]:
    """Train in a loop that reads its loss and never ends its step; return how many programs each step compiled."""
    rank, compiled = xr.global_ordinal(), list[int]()
    weights = [torch.full((4, 4), 0.1 * n, device="xla") for n in range(20)]
    for _ in range(8):
        before = counters.counter("UncachedCompile").value
        out = torch.full((2, 4), float(rank), device="xla")
        for weight in weights:
            out = (out @ weight).tanh()
        loss = summed(out.sum())
        for weight in weights:
            weight.add_(summed(weight * loss), alpha=-0.01)
        loss.item()
        weights[0].sum().item()
        compiled.append(counters.counter("UncachedCompile").value - before)
    return compiled


@pytest.mark.slow
def test_what_the_reads_of_several_processes_leave_undone_does_not_grow() -> None:
    for compiled in fleet_of(2).run(trained_without_an_end_of_step):
        assert compiled[4:] == [0] * 4  # as in one process


def ignoring() -> list[float]:
    rank = xr.global_ordinal()
    x = torch.full((2,), float(rank + 1), device="xla")
    made = summed(x)
    if rank == 1:
        del made  # no reference on this process
        gc.collect()
    torch_xla.sync(wait=True)
    return [float(summed(x).sum())]


@pytest.mark.slow
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


def what_one_reads() -> tuple[list[float], list[float]]:
    rank, found = xr.global_ordinal(), list[float]()
    weight = torch.zeros(3, device="xla")
    for step in range(4):
        own = torch.arange(3.0, device="xla") + rank + step
        loss = summed(own * (step + 1))
        weight.add_(summed(loss * 0.5))
        if rank == 0:
            # no process needs the first value, every process needs the second
            found += [own.sum().item(), loss.sum().item()]
        torch_xla.sync()
    return found, weight.tolist()


@pytest.mark.slow
def test_one_process_reads_what_the_others_compute_at_the_end_of_their_step() -> None:
    (read, weight), (nothing, other) = fleet_of(2).run(what_one_reads)
    assert read == [each for step in range(4) for each in (3.0 + 3 * step, (9.0 + 6 * step) * (step + 1))]
    assert nothing == [] and weight == other == [50.0, 70.0, 90.0]


def what_one_reads_while_the_other_waits() -> str:
    loss = summed(torch.ones(3, device="xla"))
    xm.rendezvous("begun")  # a process that starts its device later is no longer waited for
    os.environ["XLA_COLLECTIVE_TIMEOUT"] = "5"
    try:
        if xr.global_ordinal() == 0:
            loss.sum().item()
        xm.rendezvous("read")
    except PeerError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_read_by_one_of_what_the_others_do_not_come_to_compute_is_an_error_in_all() -> None:
    fleet = Fleet(2)
    try:
        for said in fleet.run(what_one_reads_while_the_other_waits):
            assert "Process 0 waited 5 s in a collective for process 1, which did not come." in said
            assert "the others have to read it too, or to end their step" in said and "(`item()`, `print`)" in said
    finally:
        fleet.kill()  # what waits in a collective does not end by itself


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
    run, keys = sync.run_step, []

    def noting(step: Step, ready: Any = None) -> None:
        run(step, ready)
        if step.program.graph.is_collective:
            keys.append(step.program.key_for(step.numbers).digest)

    found = []
    weight = torch.linspace(0, 1, 4, device="xla")
    if differs:  # a history of numbers
        (torch.ones(4, device="xla") * 0.125).cos().sum().item()
    sync.run_step = noting  # type: ignore[assignment]
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
        sync.run_step = run
    return keys, found


def test_what_is_local_decides_about_no_program_of_several_processes() -> None:
    (keys, found), (theirs, also) = fleet_of(2).run(keys_of_a_script)
    assert found == also
    assert keys == theirs and len(keys) == 8
    assert len(set(keys)) < 8


def keys_of_steps_that_hold_more_or_less(sizes: list[int], steps: list[int]) -> tuple[list[str], list[float]]:
    """Each part of three values is held in some steps. Here what is not held is garbage, and there it is gone."""
    is_tidy = xr.global_ordinal() == 0
    run, keys = sync.run_step, []

    def noting(step: Step, ready: Any = None) -> None:
        run(step, ready)
        if step.program.graph.is_collective:
            keys.append(step.program.key_for(step.numbers).digest)

    x = torch.arange(4.0, device="xla")
    torch_xla.sync()
    found: list[float] = []
    uncollected: list[_Cycle] = []
    sync.run_step = noting  # type: ignore[assignment]
    if not is_tidy:
        gc.disable()
    try:
        for step, which in enumerate(steps):
            made = [(summed(x) + x * 0).sum() + torch.zeros(size, device="xla") for size in sizes]
            kept = [each for slot, each in enumerate(made) if which >> slot & 1]
            for each in made:
                cycle = _Cycle(each.view(-1))  # another tensor on the same memory
                if not is_tidy and step % 3 == 0:
                    uncollected.append(cycle)  # old when it becomes garbage
            if not is_tidy and step % 3 == 0:
                gc.collect()
            uncollected.clear()
            del made, each, cycle
            if is_tidy:
                gc.collect()
            torch_xla.sync()
            found += [float(each[0]) for each in kept]
            del kept
    finally:
        gc.enable()
        sync.run_step = run
    return keys, found


def test_garbage_in_one_process_decides_about_no_program_of_several() -> None:
    for sizes, steps in (
        ([4, 8, 1 << 20], [1, 1, 0, 7, 3, 6, 2, 5, 4, 7, 0]),
        ([8, 4, 1 << 20], [7, 7, 3, 1, 6, 4, 0]),
    ):
        (keys, found), (theirs, also) = fleet_of(2).run(keys_of_steps_that_hold_more_or_less, sizes, steps)
        assert found == also == [12.0] * sum(map(int.bit_count, steps))
        assert keys == theirs and len(keys) == len(steps)


def trained(rank: int) -> list[float]:
    """A step with collectives, a number that is an argument, random numbers, and memory that is given away."""
    clear_schedules()
    torch_xla.manual_seed(rank)
    weight = torch.linspace(0, 1, 6, device="xla").view(2, 3)
    for step in range(3):
        gradient = weight * (rank + 1) + torch.rand(2, 3, device="xla") * 0
        norm: Any = xm.all_reduce(xm.REDUCE_MAX, gradient.norm())
        weight = weight - 0.01 * (step + 0.5) * xm.all_reduce(xm.REDUCE_SUM, gradient) / norm
        torch_xla.sync()
    found: list[float] = [*weight.flatten().tolist(), float(norm)]
    return found


def counted() -> tuple[int, int]:
    compiled, hits = (counters.value_of(name) or 0 for name in ("StableHloCompile", "PersistentCacheHit"))
    return compiled, hits


def kept(folder: str) -> list[Any]:
    rank, worth = xr.global_ordinal(), disk_cache.WORTH_KEEPING_SECONDS
    disk_cache.WORTH_KEEPING_SECONDS = 0.0
    cache_folder.choose(f"{folder}/{rank}")
    try:
        found, before = [], counted()
        for _ in range(2):
            found.append(trained(rank))
            now = counted()
            found.append([after - earlier for after, earlier in zip(now, before, strict=True)])
            before = now
        if rank == 1:  # each takes what it has
            for path in Path(folder, "1").glob("*.xla"):
                path.write_bytes(b"torch_xla")
        found.append(trained(rank))
        found.append([after - earlier for after, earlier in zip(counted(), before, strict=True)])
        return found
    finally:
        disk_cache.WORTH_KEEPING_SECONDS = worth
        cache_folder.choose(None)


def test_a_program_with_collectives_is_compiled_once_and_then_found(tmp_path: Path) -> None:
    for rank, found in enumerate(fleet_of(2).run(kept, str(tmp_path))):
        first, (compiled, hits), second, of_second, third, of_third = found
        assert second == first and third == first
        assert compiled > 0 and hits == 0 and of_second == [0, compiled]
        assert of_third == ([0, compiled], [compiled, 0])[rank]
