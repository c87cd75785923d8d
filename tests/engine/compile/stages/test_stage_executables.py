"""Executables of stages: one for each kind, found in memory or compiled."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

from tests.support import layered
from torch_xla._engine.compat.names import jax as private
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.compile.executable_key import key_of
from torch_xla._engine.compile.jax_function import MustBake
from torch_xla._engine.compile.stages import stage_executables, staged_program
from torch_xla._engine.compile.stages.stage_cuts import Stage
from torch_xla._engine.compile.stages.staged_program import Wanted
from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.ir.sharding import Sharding
from torch_xla._engine.ir.value_spec import sharded
from torch_xla._engine.metrics import counters
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.step import pending_graph

ONE = targets.of_device(jax.devices("cpu")[0])
SCALES = [0.5, 0.25, 0.5, 2.0, 1.0]


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    staged_program._executables.clear()


def compiled() -> int:
    return counters.value_of("StageCompile") or 0


def wanted(stages: tuple[Stage, ...], graph: Graph, numbers: Any, arguments: Any = ()) -> list[Wanted]:
    return staged_program.wanted(stages, key_of(graph, (), ONE), numbers, frozenset(arguments), set())


def test_equal_stages_are_compiled_once_and_found_again() -> None:
    found = layered.recorded(SCALES)
    stages = layered.cut(found.graph)
    first = wanted(stages, found.graph, found.numbers)
    assert stage_executables.fill(first, stages, layered.origins(found), keeps=False) > 0
    kinds = {stage.kind for stage in stages}
    assert compiled() == len(kinds) < len(stages)
    assert all(each.executable is not None for each in first)
    again = wanted(stages, found.graph, found.numbers)
    assert stage_executables.fill(again, stages, layered.origins(found), keeps=False) == 0.0
    assert [each.executable for each in again] == [each.executable for each in first]
    assert compiled() == len(kinds)


def test_what_nobody_holds_is_compiled_again() -> None:
    found = layered.recorded(SCALES)
    stages = layered.cut(found.graph)
    stage_executables.fill(wanted(stages, found.graph, found.numbers), stages, layered.origins(found), keeps=False)
    before = compiled()
    stage_executables.fill(wanted(stages, found.graph, found.numbers), stages, layered.origins(found), keeps=False)
    assert compiled() == 2 * before


def test_numbers_that_a_rule_looks_at_are_told_for_every_stage_of_the_kind() -> None:
    x = torch.rand(3, 3).to("xla")
    for order in (2, 3, 2, 3, 2):
        x = x.sin().cos().tanh().exp() / torch.linalg.vector_norm(x, order, dim=1, keepdim=True)
    found = pending_graph.graph_of([x])
    stages = layered.cut(found.graph)
    with pytest.raises(MustBake) as raised:
        stage_executables.fill(wanted(stages, found.graph, found.numbers), stages, layered.origins(found), keeps=False)
    assert compiled() == 0
    # Those of the layers that share an executable: each has the one number at the same place.
    orders = [index for index, number in enumerate(found.numbers) if number in (2, 3)]
    assert set(raised.value.numbers) <= set(orders) and len(raised.value.numbers) >= len(SCALES) - 1


def test_what_was_kept_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "WORTH_KEEPING_SECONDS", 0.0)
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path))
    found = layered.recorded(SCALES)
    stages = layered.cut(found.graph)
    stage_executables.fill(wanted(stages, found.graph, found.numbers), stages, layered.origins(found), keeps=True)
    before = compiled()
    again = wanted(stages, found.graph, found.numbers)
    assert stage_executables.fill(again, stages, layered.origins(found), keeps=True) > 0.0  # it read them
    assert stage_executables.fill(again, stages, layered.origins(found), keeps=True) == 0.0
    assert compiled() == before and all(each.executable is not None for each in again)
    del again
    stage_executables.fill(wanted(stages, found.graph, found.numbers), stages, layered.origins(found), keeps=False)
    assert compiled() == 2 * before


def test_stages_of_divided_values_read_them_as_earlier_ones_give_them() -> None:
    found = layered.recorded(SCALES)
    spread, rows = targets.of_mesh(private.virtual_cpu_devices(3)), Sharding(((0,),))
    graph = replace(found.graph, inputs=tuple(sharded(spec, rows) for spec in found.graph.inputs))
    stages = layered.cut(graph)
    plain = staged_program.wanted(stages, key_of(graph, (), spread), found.numbers, frozenset(), set())
    built: list[Wanted] = []
    between = {slot: rows for slot in stages[0].outputs}
    stage_executables.filled_in_order(plain, stages, between, layered.origins(found), False, built)
    assert len(built) == len(stages) and all(each.executable is not None for each in built)
    assert [spec.sharding for spec in built[0].stage.graph.inputs] == [rows] * len(stages[0].inputs)
    assert set(built[0].key.results) == {rows}
    given = dict(zip(stages[0].outputs, built[0].key.results, strict=True))
    read = [
        spec.sharding for slot, spec in zip(stages[1].inputs, built[1].stage.graph.inputs, strict=True) if slot in given
    ]
    assert read == [rows] * len(read) and read
    # Equal stages that read values that are divided alike share an executable.
    assert len({id(each.executable) for each in built}) < len(stages)
