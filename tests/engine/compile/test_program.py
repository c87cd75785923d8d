"""A program bakes numbers in until they change, and starts what was compiled of it."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

import torch_xla
from torch_xla._engine.compat.patches import mlir_contexts
from torch_xla._engine.compile import changing_numbers
from torch_xla._engine.compile.executable_key import key_of
from torch_xla._engine.compile.program import Program
from torch_xla._engine.ir.graph import Graph, cut, decode
from torch_xla._engine.metrics import counters
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.runtime.buffers import put
from torch_xla._engine.step import pending_graph
from torch_xla._engine.tensor.device import device_for

CPU = targets.of_device(jax.devices("cpu")[0])


@pytest.fixture(autouse=True)
def no_numbers_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_numbers, "_seen_numbers", {})


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Run what an earlier test has recorded, so that its compilation is not counted here."""
    torch_xla.sync()
    counters.clear()


def compiles() -> int:
    return counters.value_of("UncachedCompile") or 0


def program_of(graph: Graph, donated: tuple[int, ...] = ()) -> Program:
    return Program(graph, key_of(graph, donated, CPU))


def scaled(*scales: float) -> Graph:
    """x * first + second * ..., each number by itself."""
    x = torch.ones(3).to("xla")
    torch_xla.sync()
    y = x
    for scale in scales:
        y = y * scale
    return pending_graph.graph_of([y]).graph


def threes() -> Any:
    return put(np.full(3, 3.0, np.float32), CPU)


def run(program: Program, *numbers: float) -> Any:
    (results,) = program.start([threes()], numbers, None)
    return np.asarray(results[0])


def test_a_number_is_baked_in_until_it_changes() -> None:
    program = program_of(scaled(2.0, 5.0))
    assert not program.compiled_for((2.0, 5.0))
    assert run(program, 2.0, 5.0)[0] == 30 and program.arguments == () and compiles() == 1
    assert program.compiled_for((2.0, 5.0)) and not program.compiled_for((2.0, 7.0))
    assert run(program, 2.0, 7.0)[0] == 42 and program.arguments == (1,) and compiles() == 2
    # Any other number in its place is the same executable; the other one is baked in still.
    assert program.compiled_for((2.0, -1.0)) and not program.compiled_for((3.0, 7.0))
    assert run(program, 2.0, -1.0)[0] == -6 and compiles() == 2
    assert run(program, 3.0, 7.0)[0] == 63 and program.arguments == (0, 1) and compiles() == 3
    assert run(program, 2.0, 5.0)[0] == 30 and compiles() == 3


def test_zeros_have_signs() -> None:
    program = program_of(scaled(0.0))
    assert np.signbit(run(program, -0.0)).all() and not np.signbit(run(program, 0.0)).any()


def test_a_number_that_a_rule_looks_at_stays_baked() -> None:
    x = torch.ones(3, 3).to("xla")
    torch_xla.sync()
    graph = pending_graph.graph_of([torch.linalg.vector_norm(x, 2, dim=1)]).graph
    program = program_of(graph)
    buffer = put(np.full((3, 3), 2.0, np.float32), CPU)
    for order in (2, 1, 3, 1, 2):
        ((result,),) = program.start([buffer], (order,), None)
        np.testing.assert_allclose(result, np.linalg.norm(np.full((3, 3), 2.0), order, axis=1), rtol=1e-6)
    assert program.arguments == () and compiles() == 3


def test_keys_tell_executables_apart_by_what_is_baked() -> None:
    program = program_of(scaled(2.0, 5.0))
    run(program, 2.0, 5.0)
    assert program.key_for((2.0, 5.0)) != program.key_for((2.0, 7.0))
    run(program, 2.0, 7.0)
    assert program.key_for((2.0, 5.0)) == program.key_for((2.0, 7.0)) != program.key_for((3.0, 7.0))
    assert program.key_for((2.0, 5.0)).arguments == (1,)


def test_what_is_donated_is_gone_and_the_memory_is_told() -> None:
    graph = scaled(2.0)
    sizes = {donated: program_of(graph, donated).compile_for((2.0,)) for donated in [(), (0,)]}
    assert sizes[()] is not None and sizes[0,] is not None
    assert (sizes[()].inputs, sizes[()].outputs, sizes[()].aliased) == (12, 12, 0) and sizes[0,].aliased == 12
    program, buffer = program_of(graph, (0,)), threes()
    started = program.start([buffer], (2.0,), None)
    assert not buffer.is_deleted()  # it runs when it is asked for
    next(started)
    assert buffer.is_deleted()
    program.compile_for((2.0,))
    assert program.allocates == 0 and program.fits


def test_a_failed_compilation_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(scaled(2.0, 5.0))
    run(program, 2.0, 5.0)

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(Program, "_lower", fails)
        with pytest.raises(RuntimeError, match="no room"):
            run(program, 3.0, 5.0)
    assert program.arguments == () and program.compiled_for((2.0, 5.0))
    assert run(program, 3.0, 5.0)[0] == 45


def test_texts_are_of_the_numbers_that_were_asked_for() -> None:
    program = program_of(scaled(2.5))
    assert "2.5" in program.lowered((2.5,)).as_text()
    assert "HloModule" in program.optimized((2.5,))
    assert program.parts((2.5,)) == [(program.executable((2.5,)), 1)] and not program.waiting((2.5,))
    assert program.placed((2.5,)) == [CPU.everywhere] and program.shared == () and program.ends == (0,)


def test_what_is_looked_at_on_the_host_is_told_by_its_place() -> None:
    x = torch.ones(3).to("xla")
    torch_xla.sync()
    torch._assert_async((x > 0).all(), "positive")
    tape = device_for(None).tape
    inputs, operations, producer = decode(tape.code)
    whole = cut(
        inputs, operations, list(range(len(operations))), [slot for slot, made in enumerate(producer) if made >= 0]
    ).graph
    program = program_of(whole)
    ((output, operation),) = program.reports
    assert whole.outputs[output] == whole.operations[operation].first_output
    assert whole.operations[operation].plan.effect is not None
    assert program_of(scaled(1.0)).reports == ()


def test_small_programs_are_lowered_in_one_context(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    make = mlir_contexts.private.module_context
    monkeypatch.setattr(mlir_contexts, "_kept", mlir_contexts._Kept())
    for name in ("module_context", "context_of_jax"):
        monkeypatch.setattr(mlir_contexts.private, name, lambda: made.append(1) or make())
    several = [(2.0,), (2.0, 3.0), (2.0, 3.0, 4.0)]
    for numbers in several:
        assert run(program_of(scaled(*numbers)), *numbers)[0] == 3 * np.prod(numbers)
    assert len(made) == 1
    program_of(scaled(2.0)).lowered((2.0,))  # a program that code may keep has its own
    assert len(made) == 2
