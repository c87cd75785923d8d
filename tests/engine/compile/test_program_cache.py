"""Programs in memory: one for each key, and the least recently used leave first."""

from collections import OrderedDict
from dataclasses import replace

import jax
import pytest
import torch

from torch_xla._engine.compile import program_cache
from torch_xla._engine.compile.program import Program
from torch_xla._engine.compile.program_cache import program_of
from torch_xla._engine.ir.call_plan import Operand, Plan
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.value_spec import spec_of
from torch_xla._engine.metrics.observers import observers
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.runtime import memory_mappings

SPEC = spec_of((2,), (1,), torch.float32)
NEG = Plan(torch.ops.aten.neg.default, ((Operand(0),), {}), (SPEC,), (), (SPEC,))
CPU = targets.of_device(jax.devices("cpu")[0])


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_cache, "_programs", OrderedDict())


def graph(plan: Plan = NEG) -> Graph:
    return Graph((SPEC,), (Operation(plan, (0,), 0, -1, 1, 0),), (1,))


def test_equal_keys_are_one_program() -> None:
    program = program_of(graph(), (), CPU)
    assert program_of(graph(), (), CPU) is program
    others = [program_of(graph(), (0,), CPU), program_of(graph(replace(NEG)), (), CPU)]
    with jax.default_matmul_precision("high"):
        others.append(program_of(graph(), (), CPU))
    assert len({id(each) for each in [program, *others]}) == program_cache.size() == 4
    assert all(each.key.target is CPU and isinstance(each, Program) for each in others)
    program_cache.clear()
    assert program_cache.size() == 0 and program_of(graph(), (), CPU) is not program


def test_the_least_recently_used_leave_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "2")
    first, second, third = (graph(replace(NEG)) for _ in range(3))
    kept, left = program_of(first, (), CPU), program_of(second, (), CPU)
    program_of(first, (), CPU)
    program_of(third, (), CPU)
    assert program_cache.size() == 2
    assert program_of(first, (), CPU) is kept
    assert program_of(second, (), CPU) is not left


def test_where_mappings_are_scarce_half_of_the_programs_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(program_cache, "when_scarce", [lambda: asked.append(True)])
    monkeypatch.setattr(memory_mappings, "are_scarce", lambda: program_cache.size() == 4)
    graphs = [graph(replace(NEG)) for _ in range(5)]
    programs = [program_of(each, (), CPU) for each in graphs[:4]]
    with pytest.warns(UserWarning, match="^Compiled code takes so many of the memory mappings"):
        program_of(graphs[4], (), CPU)
    assert asked == [True] and program_cache.size() == 3
    assert program_of(graphs[2], (), CPU) is programs[2] and program_of(graphs[3], (), CPU) is programs[3]


def test_a_new_program_may_be_refused_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = program_of(graph(), (), CPU)

    def refuse() -> None:
        raise RuntimeError("no new programs")

    monkeypatch.setattr(observers, "before_new_program", refuse)
    with pytest.raises(RuntimeError, match="no new programs"):
        program_of(graph(replace(NEG)), (), CPU)
    assert program_cache.size() == 1 and program_of(graph(), (), CPU) is known
