"""Bitwise and logical operations, and shifts, agree with PyTorch on the CPU."""

import pytest
import torch

from tests.support.rule_table import call, check_calls
from tests.support.values import INTEGERS, edge_values, grid
from torch_xla._engine.lowering.elementwise.bitwise import LOGICAL

aten = torch.ops.aten

BITWISE = [aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor]


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool])
def test_bitwise_operations_agree_in_every_dtype(dtype: torch.dtype) -> None:
    operand = edge_values(dtype)
    calls = [call(aten.bitwise_not.default, operand)]
    for packet in BITWISE:
        calls.append(call(packet.Tensor, *grid(dtype)))
        calls.append(call(packet.Scalar, operand, True if dtype is torch.bool else 6))
        calls.append(call(packet.Scalar_Tensor, 5, operand))
    check_calls([*calls, call(aten.bitwise_and.Tensor, torch.tensor([5, -6]), torch.tensor(3, dtype=torch.uint8))])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_beyond_the_width_leave_only_the_sign(dtype: torch.dtype) -> None:
    operand, amounts = edge_values(dtype)[:, None], torch.tensor([0, 1, 3, 7, 8, 31, 32, 63, 64, 100, -1]).to(dtype)
    calls = []
    for packet, python in ((aten.bitwise_left_shift, aten.__lshift__), (aten.bitwise_right_shift, aten.__rshift__)):
        calls += [call(packet.Tensor, operand, amounts), call(python.Tensor, operand, amounts)]
        calls += [call(packet.Tensor_Scalar, operand, 2), call(python.Scalar, operand, 2)]
        calls.append(call(packet.Scalar_Tensor, 5, amounts))
    check_calls(calls)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_logical_operations_ask_whether_a_value_is_zero(dtype: torch.dtype) -> None:
    calls = [call(op, *grid(dtype)) for op in LOGICAL if op is not aten.logical_not.default]
    check_calls([*calls, call(aten.logical_not.default, edge_values(dtype))])
    check_calls([call(aten.logical_xor.default, edge_values(dtype)[:, None], torch.tensor([1, 0]))])
