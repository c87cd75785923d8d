"""A read runs a part of a tape: what is computed on the way and held is kept, and the rest is done once, later."""

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.buffers import Buffer
from torch_xla._engine.ir.call_plan import Plan
from torch_xla._engine.ir.graph import Operation, decode, effective, needed_in_order
from torch_xla._engine.ir.side_effects import CALLBACK, CHECK, collective
from torch_xla._engine.ir.tape import ALL, Tape, Value
from torch_xla._engine.ir.value_spec import spec_of
from torch_xla._engine.step.partition import FEW, are_few, grows, parted, reporting, with_end, with_reported

FLOAT, COUNTER = spec_of((4,), (1,), torch.float32), spec_of((), (), torch.int64)


def tape_of(*operations: tuple[Sequence[int], Any, Any]) -> Tape:
    """One input, and for each operation its operands, its result and its effect."""
    tape = Tape()
    value = Value(FLOAT, None, None, -1)
    value.buffer = Buffer()
    tape.enter(value)
    for nth, (operands, result, effect) in enumerate(operations):
        specs = tuple(tape.values[slot].spec for slot in operands)
        tape.append(Plan(f"op{nth}", ((), {}), specs, (), (result,), effect=effect), operands, None)
    return tape


@st.composite
def tapes(draw: Any) -> Tape:
    operations: list[Any] = []
    for slot in range(1, draw(st.integers(2, 9))):
        operands = draw(st.lists(st.integers(0, slot - 1), min_size=1, max_size=2))
        operations.append((operands, draw(st.sampled_from([FLOAT, COUNTER])), draw(st.sampled_from([None, CALLBACK]))))
    return tape_of(*operations)


@given(tapes(), st.data(), st.booleans())
@settings(max_examples=100)
def test_nothing_runs_twice_and_nothing_that_is_needed_is_lost(tape: Tape, data: Any, keeps: bool) -> None:
    _, operations, producer = decode(tape.code)
    held = data.draw(st.lists(st.integers(1, len(producer) - 1), unique=True, min_size=1).map(sorted))
    root = data.draw(st.sampled_from(held))
    effects = effective(operations)
    chosen = needed_in_order(operations, producer, [root])
    outputs, kept = parted(operations, producer, held, chosen, effects, keeps)
    assert root in outputs
    there = {0, *outputs}
    for operation in kept:  # in the order of the tape, each finds its operands
        assert there.issuperset(operation.operands)
        there.update(range(operation.first_output, operation.first_output + len(operation.plan.outputs)))
    assert there.issuperset(held)
    repeated = {id(operations[index]) for index in chosen} & {id(operation) for operation in kept}
    once = {id(operations[producer[slot]]) for slot in outputs} | {id(operations[index]) for index in effects}
    assert not repeated & once
    assert {id(operations[index]) for index in effects} <= {id(operations[index]) for index in chosen} | {
        id(operation) for operation in kept
    }


def names(operations: Sequence[Operation]) -> list[str]:
    return [operation.plan.op for operation in operations]


def test_what_is_left_takes_counters_from_the_read_if_it_may() -> None:
    tape = tape_of(([0], COUNTER, None), ([1], FLOAT, None), ([1], FLOAT, None))
    _, operations, producer = decode(tape.code)
    chosen = needed_in_order(operations, producer, [2])
    assert chosen == [0, 1]
    outputs, kept = parted(operations, producer, [2, 3], chosen, [], keeps_counters=False)
    assert outputs == [2] and names(kept) == ["op0", "op2"]
    outputs, kept = parted(operations, producer, [2, 3], chosen, [], keeps_counters=True)
    assert outputs == [1, 2] and names(kept) == ["op2"]


def test_the_result_of_an_effect_is_kept_for_what_is_left() -> None:
    tape = tape_of(([0], FLOAT, CALLBACK), ([1], FLOAT, None), ([1], FLOAT, None))
    _, operations, producer = decode(tape.code)
    outputs, kept = parted(operations, producer, [2, 3], [0, 1], [0], keeps_counters=False)
    assert outputs == [1, 2] and names(kept) == ["op2"]


def test_what_is_looked_at_on_the_host_is_an_output_too() -> None:
    tape = tape_of(([0], FLOAT, None), ([0], COUNTER, CHECK), ([0], FLOAT, CALLBACK))
    _, operations, _ = decode(tape.code)
    assert reporting(operations, [0, 1, 2]) == [1]
    assert with_reported(operations, [0, 1], [1]) == [1, 2] and with_reported(operations, [0, 2], [1]) == [1]


def test_exchanges_of_which_nobody_holds_a_result_give_one_to_wait_for() -> None:
    tape = tape_of(([0], FLOAT, collective()), ([0], COUNTER, collective()), ([0], COUNTER, CALLBACK))
    _, operations, _ = decode(tape.code)
    assert with_end(operations, [0, 1, 2], []) == [2] and with_end(operations, [0], []) == [1]
    assert with_end(operations, [0, 1], [1]) == [1] and with_end(operations, [2], []) == []


def test_few_operations_without_effects_run_with_a_read() -> None:
    operations = decode(tape_of(*[((slot,), FLOAT, None) for slot in range(FEW + 2)]).code)[1]
    assert are_few(operations, FEW, 1) and not are_few(operations, FEW + 1, 1)
    assert are_few(operations, 40, 120) and not are_few(operations, 41, 120)
    with_effect = decode(tape_of(((0,), FLOAT, CHECK)).code)[1]
    assert not are_few(with_effect, 1, 1)


def test_a_read_grows_what_is_left_by_what_an_earlier_read_has_not_left() -> None:
    operations = decode(tape_of(*[((slot,), FLOAT, None) for slot in range(4)]).code)[1]
    rest = operations[2].position  # the first two were left by an earlier read
    assert grows([operations[0], operations[3]], rest)
    assert not grows(operations[2:], rest)  # nobody holds what was left before
    assert not grows(operations[:2], rest) and not grows([], rest)
    assert grows(operations[:1], ALL) and not grows([], ALL)
