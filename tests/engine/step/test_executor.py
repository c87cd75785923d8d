"""Values in, a program, values out: the one way in which programs are started."""

import gc
from typing import Any

import jax
import pytest
import torch

import torch_xla
from torch_xla._engine.compile import program_cache
from torch_xla._engine.compile.program import Program
from torch_xla._engine.errors import ExecutionError
from torch_xla._engine.ir.tape import Value
from torch_xla._engine.metrics import counter, counters
from torch_xla._engine.metrics.events import Cause
from torch_xla._engine.metrics.observers import observers
from torch_xla._engine.step import executor
from torch_xla._engine.step.executor import run
from torch_xla._engine.step.pending_graph import Pending, graph_of
from torch_xla._engine.step.step import Step
from torch_xla._engine.tensor.storage import value_of, wrap


def program_of(*tensors: torch.Tensor) -> tuple[Program, Pending, list[Value]]:
    """Return the program of tensors, its inputs, and values for the results."""
    found = graph_of(tensors)
    program = program_cache.program_of(found.graph, (), found.device.target_of(found.graph))
    return program, found, [Value(value_of(each).spec, found.device, None, -1) for each in tensors]


def test_results_get_buffers_and_counters_what_they_are_told() -> None:
    x = torch.arange(3.0).to("xla")
    program, found, outputs = program_of(x + 1.5, x * 2.0)
    mine = counter("Mine")
    run(Step(program, found.inputs, outputs, found.numbers, counts=[(mine, 3)]))
    assert [wrap(value).tolist() for value in outputs] == [[1.5, 2.5, 3.5], [0, 2, 4]]
    assert counters.value_of("Mine") == 3
    again = [Value(value.spec, value.device, None, -1) for value in outputs]
    run(Step(program, found.inputs, again, [10.0, 3.0]))
    assert [wrap(value).tolist() for value in again] == [[10, 11, 12], [0, 3, 6]]  # numbers are arguments


def test_what_is_to_happen_around_a_run_happens() -> None:
    program, found, outputs = program_of(torch.ones(3).to("xla").exp())
    seen: list[Any] = []
    before, after = map(seen.append, ["before"]), map(seen.append, ["after"])
    run(Step(program, found.inputs, outputs, before=before, after=after))
    assert seen == ["before", "after"] and outputs[0].buffer is not None


def test_draws_are_those_of_the_states() -> None:
    program, found, outputs = program_of(torch.rand(4, device="xla"))
    results = []
    for state in (5, 5, 6):
        run(Step(program, found.inputs, outputs, found.numbers, draws=[state]))
        results.append(wrap(outputs[0]).tolist())
        outputs = [Value(value.spec, value.device, None, -1) for value in outputs]
    assert results[0] == results[1] != results[2]


def test_a_describer_of_programs_is_called_instead_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    program, found, outputs = program_of(torch.arange(3.0).to("xla").exp())
    asked: list[Step] = []

    def describe(step: Step) -> list[Any]:
        asked.append(step)
        return ["described"]

    monkeypatch.setattr(observers, "describe_run", describe)
    run(step := Step(program, found.inputs, outputs, cause=Cause.READ))
    assert outputs[0].buffer == "described" and asked == [step]
    assert not counters.value_of("UncachedCompile")


def test_what_another_run_has_lost_is_told_once_and_the_rest_is_computed() -> None:
    lost, kept = torch.ones(3).to("xla"), torch.ones(3).to("xla")
    torch_xla.sync(wait=True)
    needs, other = lost + 1, kept + 1
    value = value_of(lost)
    value.buffer.delete()
    executor._lose([value], "a stage failed")
    with pytest.raises(ExecutionError, match="needs a value that is gone: a stage failed"):
        torch_xla.sync()
    torch_xla.sync(wait=True)
    assert other.tolist() == [2, 2, 2]
    for each in (needs, lost):
        with pytest.raises(RuntimeError, match="never computed.*a stage failed"):
            each.tolist()


def test_large_results_that_nobody_holds_are_let_go() -> None:
    x = torch.ones(1 << 19).to("xla")
    size = x.nbytes

    def living() -> int:
        return sum(array.nbytes == size and not array.is_deleted() for array in jax.live_arrays())

    torch_xla.sync(wait=True)
    gc.collect()  # what earlier tests left would go meanwhile
    before = living()
    for _ in range(12):
        y = x * 2  # the only result, so it shows when its program has ended
        torch_xla.sync()
        assert y.shape == x.shape
        del y
        for array in jax.live_arrays():
            if not array.is_deleted():
                array.block_until_ready()
    assert living() <= before + 2
    torch_xla.sync(wait=True)
    assert living() == before
