"""Operators that copy give what PyTorch gives on the CPU."""

import torch

from tests.support.rule_table import call, check_calls

aten = torch.ops.aten


def test_copies_keep_the_values_and_take_the_shape_of_their_target() -> None:
    operand = torch.tensor([[1.5], [-2.5]])
    calls = [call(op, operand) for op in (aten.clone.default, aten.lift_fresh_copy.default, aten._to_copy.default)]
    target = torch.zeros(2, 3, dtype=torch.int64)
    check_calls([*calls, call(aten.copy.default, target, operand), call(aten.copy.default, target, torch.tensor(True))])
