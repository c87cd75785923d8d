"""A program in stages returns the results of its graph, with its numbers, and reports its memory."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from tests.support import layered
from torch_xla._engine.compile import jax_function
from torch_xla._engine.compile.executable_key import key_of
from torch_xla._engine.compile.stages import stage_executables, staged_program
from torch_xla._engine.compile.stages.staged_program import Staged, packed
from torch_xla._engine.ir.call_plan import Number, Operand, Plan
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.value_spec import spec_of
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.runtime.buffers import put
from torch_xla._engine.step.pending_graph import Pending

CPU = targets.of_device(jax.devices("cpu")[0])
SCALES = [0.5, 0.25, 0.5, 2.0, 1.0]


def built(found: Pending, arguments: tuple[int, ...] = (), donated: tuple[int, ...] = ()) -> Staged:
    stages = layered.cut(found.graph, donated)
    key = key_of(found.graph, donated, CPU)
    wanted = staged_program.wanted(stages, key, found.numbers, frozenset(arguments), set())
    stage_executables.fill(wanted, stages, layered.origins(found), keeps=False)
    return Staged(found.graph, stages, wanted, found.numbers, arguments, CPU)


def run(program: Staged, buffers: list[Any], floats: Any = None, keys: Any = None) -> Any:
    (results,) = program.start(buffers, floats, None, keys)
    return np.asarray(results[0])


def ones() -> Any:
    return put(np.ones((3, 3), np.float32), CPU)


def test_the_stages_give_what_the_graph_gives() -> None:
    program = built(layered.recorded(SCALES))
    x = ones()
    for _ in range(2):
        np.testing.assert_allclose(run(program, [x]), layered.expected(SCALES), rtol=1e-5)
    assert not x.is_deleted()
    assert sum(times for _, times in program.parts()) > len(program.parts())
    text = program.as_text()
    assert text.count("// stage ") == text.count("HloModule") == len(program.parts())


def test_numbers_that_are_arguments_come_with_a_run_and_the_others_wait() -> None:
    found = layered.recorded(SCALES)
    places = [index for index, number in enumerate(found.numbers) if number == 0.25]
    assert len(places) == 1
    program = built(found, tuple(places))
    for scale in (0.25, -3.0, -3.0, 0.25):
        np.testing.assert_allclose(
            run(program, [ones()], np.array([scale])), layered.expected([0.5, scale, 0.5, 2.0, 1.0]), rtol=1e-5
        )


def test_stages_draw_the_keys_of_the_whole_graph() -> None:
    found = layered.recorded(SCALES, draws=True)
    program = built(found)
    keys = np.arange(4 * found.graph.draws, dtype=np.uint32).reshape(-1, 4)
    with jax.enable_x64(True):
        (whole,) = jax_function.as_function(found.graph, list(found.numbers), [], [])(ones(), jax.numpy.asarray(keys))
    np.testing.assert_allclose(run(program, [ones()], keys=keys), whole, rtol=1e-5)
    assert not np.allclose(run(program, [ones()], keys=keys + 1), whole)


def test_what_is_given_away_is_gone_and_a_wrong_dtype_is_told_before() -> None:
    program = built(layered.recorded(SCALES), donated=(0,))
    x = ones()
    np.testing.assert_allclose(run(program, [x]), layered.expected(SCALES), rtol=1e-5)
    wrong = put(np.ones((3, 3), np.float16), CPU)
    with pytest.raises(TypeError, match="another dtype than the program was compiled for"):
        program.start([wrong], None, None, None)
    assert not wrong.is_deleted()


def test_nothing_runs_before_it_is_asked_for() -> None:
    program = built(layered.recorded(SCALES))
    x = ones()
    started = program.start([x], None, None, None)
    assert not isinstance(started, list)
    ((result,),) = started
    assert result.shape == (3, 3) and next(started, None) is None


def test_memory_counts_what_waits_between_stages() -> None:
    program = built(layered.recorded(SCALES))
    sizes = program.memory_analysis()
    assert sizes is not None
    assert (sizes.inputs, sizes.outputs, sizes.aliased) == (36, 36, 0)
    waiting = program.waiting_at_peak()
    assert sizes.intermediate >= 36 * len(waiting) > 0
    assert all(slot and size == program._graph.specs[slot].size for slot, size in waiting)


def test_numbers_that_are_equal_but_not_the_same_are_packed_otherwise() -> None:
    spec = spec_of((), (), torch.float32)
    plan = Plan("op", ((Operand(0), Number(0), Number(1)), {}), (spec,), (float, int), (spec,))
    graph = Graph((spec,), (Operation(plan, (0,), 0, -1, 1, 0),), (1,))
    assert len({packed(graph, numbers) for numbers in [(0.0, 1), (-0.0, 1), (1.0, 0), (0.0, -1)]}) == 4
    assert packed(graph, (0.0, 1)) == packed(graph, (0.0, True))


def test_equal_stages_are_one_and_differ_in_no_number_that_is_baked() -> None:
    found = layered.recorded([0.5, 0.25, 0.5, 0.25, 1.0])
    stages = layered.cut(found.graph)
    key = key_of(found.graph, (), CPU)
    free = staged_program.wanted(stages, key, found.numbers, frozenset(), set())
    fixed = staged_program.wanted(stages, key, found.numbers, frozenset(), set(range(len(found.numbers))))
    by_kind: dict[Any, set[int]] = {}
    for stage, each in zip(stages, free, strict=True):
        by_kind.setdefault(stage.kind, set()).add(id(each))
    assert all(len(each) == 1 for each in by_kind.values())
    # With their numbers baked in, those with the same one share it.
    assert len(set(map(id, free))) < len(set(map(id, fixed))) < len(stages)
    assert all(each.key.arguments == () for each in fixed)
