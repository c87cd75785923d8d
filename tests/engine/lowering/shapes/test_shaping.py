"""Concatenation, padding, rolling, flipping and repeating agree with PyTorch on the CPU."""

import pytest
import torch

import torch_xla._engine.lowering.shapes.shaping  # noqa: F401
from tests.support.rule_table import call, check_calls

aten = torch.ops.aten

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_are_moved_in_every_dtype(dtype: torch.dtype) -> None:
    operand = (torch.randn(3, 4, 5) * 3).to(dtype)
    check_calls(
        [
            call(aten.cat.default, [operand, operand[:, :2]], 1),
            call(aten.stack.default, [operand, operand], -1),
            call(aten.roll.default, operand, [1, -2], [0, 2]),
            call(aten.flip.default, operand, [0, -1]),
            call(aten.rot90.default, operand, 1, [0, 2]),
            call(aten.repeat.default, operand, [2, 1, 3, 2]),
            call(aten.constant_pad_nd.default, operand, [1, 2, 0, 3], 1),
            call(aten.tril.default, operand, -1),
            call(aten.triu.default, operand, 1),
            call(aten.block_diag.default, [operand[0], operand[1, :2]]),
            call(aten._chunk_cat.default, [operand, operand[:2]], 0, 2),
        ]
    )


def test_a_vector_without_elements_goes_with_tensors_of_any_shape() -> None:
    empty, matrix = torch.zeros(0), torch.randn(2, 3)
    check_calls(
        [
            call(aten.cat.default, [empty, matrix], 1),
            call(aten.cat.default, [matrix, empty, matrix], -2),
            call(aten.cat.default, [empty, empty], 0),
            call(aten.cat.default, [matrix, torch.zeros(0, 3)], 0),
            call(aten.cat.default, [empty.double(), matrix], 0),
            call(aten.cat.default, [matrix[:, :0], matrix], 1),
        ]
    )


def test_what_is_put_together_is_promoted() -> None:
    number, flag, fraction = torch.tensor([1, 2]), torch.tensor([True]), torch.tensor([0.5])
    check_calls(
        [
            call(aten.cat.default, [number, flag], 0),
            call(aten.cat.default, [number, fraction.bfloat16(), fraction], 0),
            call(aten.stack.default, [torch.tensor(1), torch.tensor(0.5)], 0),
            call(aten._stack.default, [number, number], 1),
            call(aten.block_diag.default, [torch.tensor(2), number, fraction]),
            call(aten.block_diag.default, [torch.zeros(0, 2), number.float()]),
        ]
    )


def test_rolling_wraps_around_from_every_distance() -> None:
    operand = torch.arange(12).reshape(3, 4)
    calls = [call(aten.roll.default, operand, [shift], dims) for shift in (0, 1, -5, 13) for dims in ([], [1], [-2])]
    calls.append(call(aten.roll.default, operand, [1, 2], [1, 1]))
    calls.append(call(aten.roll.default, torch.zeros(0, 2), [1], [0]))
    check_calls([*calls, call(aten.roll.default, torch.tensor(3), [2])])


def test_turning_and_flipping_take_any_number_of_times_and_dimensions() -> None:
    operand = torch.arange(24).reshape(2, 3, 4)
    calls = [call(aten.rot90.default, operand, k, dims) for k in (-1, 0, 2, 3, 5) for dims in ([0, 1], [-1, 1])]
    check_calls([*calls, call(aten.flip.default, operand, []), call(aten.flip.default, torch.tensor(3), [])])


def test_repeating_adds_dimensions_and_removes_elements() -> None:
    operand = torch.arange(6).reshape(2, 3)
    check_calls(call(aten.repeat.default, operand, repeats) for repeats in ([1, 1], [0, 2], [3, 1, 1], [2, 0, 1, 2]))
    check_calls(call(aten.repeat.default, torch.tensor(3), repeats) for repeats in ([], [2], [2, 3]))


def test_padding_fills_and_negative_padding_cuts() -> None:
    operand = torch.randn(2, 3, 4)
    calls = [
        call(aten.constant_pad_nd.default, operand, pad, value)
        for pad in ([], [1, 1], [-1, 0, 0, -2], [2, -3, 1, 0, 0, 1], [-2, -2])
        for value in (0, -1.5, float("-inf"))
    ]
    check_calls([*calls, call(aten.constant_pad_nd.default, torch.zeros(0, 2), [0, 0, 1, 1], 3)])


@pytest.mark.parametrize("diagonal", [-5, -1, 0, 2, 7, (1 << 31) - 1, -(1 << 31), 1 << 40, -(1 << 40)])
def test_triangles_of_matrices_are_cut_out(diagonal: int) -> None:
    operands = (torch.randn(3, 5), torch.randn(2, 4, 3), torch.full((3, 3), float("nan")), torch.zeros(0, 3))
    check_calls(call(op.default, x, diagonal) for op in (aten.tril, aten.triu) for x in operands)


def test_uneven_pieces_are_padded_before_they_lie_side_by_side() -> None:
    tensors = [torch.randn(5, 2), torch.randn(3, 4), torch.randn(1)]
    calls = [call(aten._chunk_cat.default, tensors, 0, chunks) for chunks in (1, 2, 3)]
    check_calls([*calls, call(aten._chunk_cat.default, [torch.randn(2, 5, 3), torch.randn(2, 2, 4)], 1, 3)])


def test_the_number_to_pad_with_may_change_from_step_to_step() -> None:
    operand = torch.randn(3, 4)
    calls = [call(aten.constant_pad_nd.default, x, [1, -1], 2.5) for x in (operand, operand.bfloat16())]
    check_calls([*calls, call(aten.constant_pad_nd.default, operand.int(), [1, 1], 2)], changing=True)
