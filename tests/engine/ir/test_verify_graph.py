"""A graph that is not well formed is named."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.buffers import Buffer
from torch_xla._engine.ir.call_plan import Plan
from torch_xla._engine.ir.graph import cut, decode
from torch_xla._engine.ir.tape import Tape, Value
from torch_xla._engine.ir.value_spec import spec_of
from torch_xla._engine.ir.verify_graph import verify

SCALAR = spec_of((), (), torch.float64)


@pytest.mark.parametrize(
    "change, complaint",
    [
        ({"operands": (0,)}, "operation 1 (second): 1 operands, its plan has 2"),
        ({"operands": (1, 3)}, "operation 1 (second): reads slot 3 before it is filled"),
        ({"first_output": 4}, "operation 1 (second): its slots or numbers are out of order"),
        ({"first_number": 2}, "operation 1 (second): its slots or numbers are out of order"),
        ({"draw": 1}, "operation 1 (second): its draw is out of order"),
        ({"operands": (1, 0)}, "operation 1 (second): slot 0 is Spec((3,)"),
    ],
)
def test_a_graph_that_is_not_well_formed_is_named(change: dict[str, Any], complaint: str) -> None:
    row = spec_of((3,), (1,), torch.float64)
    tape = Tape()
    for spec in (row, SCALAR):
        value = Value(spec, None, None, -1)
        value.buffer = Buffer()
        tape.enter(value)
    tape.append(Plan("first", ((), {}), (row,), (float,), (SCALAR,)), (0,), None, (1.0,))
    second = Plan("second", ((), {}), (SCALAR, SCALAR), (float,), (SCALAR,), draws=1)
    tape.append(second, (1, 2), None, (2.0,), (0,))
    inputs, operations, _ = decode(tape.code)

    whole = cut(inputs, operations, [0, 1], [3]).graph
    verify(whole)
    broken = replace(whole, operations=(whole.operations[0], replace(whole.operations[1], **change)))
    with pytest.raises(ValueError, match="operation 1") as raised:
        verify(broken)
    assert str(raised.value).startswith(complaint)
    with pytest.raises(ValueError, match="output slot 9 is never filled"):
        verify(replace(whole, outputs=(9,)))
