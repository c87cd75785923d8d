"""A tape's code is taken apart into operations, and the part that some values need is put together again."""

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.buffers import Buffer
from torch_xla._engine.ir.call_plan import Plan
from torch_xla._engine.ir.graph import cut, decode, needed, needed_in_order, slots_of, walk
from torch_xla._engine.ir.side_effects import CALLBACK
from torch_xla._engine.ir.tape import Tape, Value
from torch_xla._engine.ir.value_spec import spec_of
from torch_xla._engine.ir.verify_graph import verify

SCALAR = spec_of((), (), torch.float64)


@st.composite
def tapes(draw: Any) -> Tape:
    """Inputs and operations as they come, of one or two results, with numbers, draws and effects."""
    tape = Tape()
    for _ in range(draw(st.integers(1, 10))):
        if not tape.values or draw(st.integers(0, 3)) == 0:
            value = Value(SCALAR, None, None, -1)
            value.buffer = Buffer()
            tape.enter(value)
            continue
        operands = draw(st.lists(st.integers(0, len(tape.values) - 1), max_size=3))
        numbers, draws = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        outputs = (SCALAR,) * draw(st.integers(1, 2))
        effect = CALLBACK if draw(st.integers(0, 5)) == 0 else None
        specs = (SCALAR,) * len(operands)
        plan = Plan(f"op{len(tape.code)}", ((), {}), specs, (float,) * numbers, outputs, draws=draws, effect=effect)
        first, key = len(tape.numbers), len(tape.draws)
        tape.append(plan, operands, None, range(first, first + numbers), range(key, key + draws))
    return tape


def results(graph: Any, inputs: list[Any], numbers: Any, draws: Any) -> list[Any]:
    """Return the results of the graph if each operation returns a description of its call."""
    values = list(inputs)
    for operation, slots in walk(graph):
        first, plan = operation.first_number, operation.plan
        key = operation.key(np.array(draws)) if plan.draws else None
        called = (
            plan.op,
            tuple(values[slot] for slot in operation.operands),
            tuple(numbers[first : first + len(plan.numbers)]),
            None if key is None else np.array(key).tolist(),
        )
        values.extend((called, nth) for nth in range(len(slots)))
    return [values[slot] for slot in graph.outputs]


@given(tapes(), st.data())
def test_a_part_gives_what_the_whole_gives(tape: Tape, data: Any) -> None:
    inputs, operations, producer = decode(tape.code)
    assert len(producer) == len(tape.values) and sorted(inputs) == [s for s, made in enumerate(producer) if made < 0]
    everything = list(range(len(operations)))
    whole = cut(inputs, operations, everything, list(range(len(producer))))
    verify(whole.graph)
    names = {slot: f"input{slot}" for slot in inputs}
    all_of_it = results(whole.graph, [names[slot] for slot in whole.inputs], tape.numbers, tape.draws)

    roots = data.draw(st.lists(st.integers(0, len(producer) - 1), unique=True))
    chosen = needed(operations, producer, roots)
    part = cut(inputs, operations, chosen, roots)
    verify(part.graph)
    numbers, draws = [tape.numbers[i] for i in part.numbers], [tape.draws[i] for i in part.draws]
    assert results(part.graph, [names[slot] for slot in part.inputs], numbers, draws) == [all_of_it[s] for s in roots]
    # Nothing more than that is computed or read.
    read = {slot for index in chosen for slot in operations[index].operands}.union(roots)
    assert set(part.inputs) <= read
    assert all(read.intersection(slots_of(operations, [index])) for index in chosen)
    assert [tape.code[position] for position in part.positions] == [each.plan for each in part.graph.operations]


@given(tapes(), st.data())
def test_a_value_behind_an_effect_needs_all_effects_before_it(tape: Tape, data: Any) -> None:
    _, operations, producer = decode(tape.code)
    roots = data.draw(st.lists(st.integers(0, len(producer) - 1), max_size=2))
    effects = [index for index, each in enumerate(operations) if each.plan.effect is not None]
    plain, ordered = needed(operations, producer, roots), needed_in_order(operations, producer, roots)
    reached = [index for index in effects if index in plain]
    before = [index for index in effects if reached and index <= max(reached)]
    assert set(plain) <= set(ordered) and [index for index in ordered if index in effects] == before


def test_equal_graphs_have_equal_codes_and_others_do_not() -> None:
    plan = Plan("op", ((), {}), (SCALAR, SCALAR), (), (SCALAR,))
    codes = set()
    # Inputs are counted in the order of their use, so the first three differ in which values they are given alone.
    for operands, root in [((0, 1), 2), ((1, 0), 2), ((0, 1), 2), ((0, 0), 2), ((0, 1), 0)]:
        tape = Tape()
        for _ in range(2):
            value = Value(SCALAR, None, None, -1)
            value.buffer = Buffer()
            tape.enter(value)
        tape.append(plan, operands, None)
        inputs, operations, _ = decode(tape.code)
        codes.add(cut(inputs, operations, [0], [root]).graph.code)
    assert len(codes) == 3
