"""Copies of views agree with PyTorch on the CPU."""

import pytest
import torch

import torch_xla._engine.lowering.shapes.view_copy  # noqa: F401
from tests.support.rule_table import call, check_calls

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_every_view_can_be_copied(dtype: torch.dtype) -> None:
    operand = (torch.randn(2, 1, 6, 4) * 3).to(dtype)
    check_calls(
        [
            call(aten.view_copy.default, operand, [4, -1, 3]),
            call(aten._reshape_copy.default, operand, [48]),
            call(aten._unsafe_view.default, operand, [8, 6]),
            call(aten.alias_copy.default, operand),
            call(aten.expand_copy.default, operand, [3, -1, 5, 6, 4]),
            call(aten.permute_copy.default, operand, [3, -4, 1, 2]),
            call(aten.transpose_copy.int, operand, 0, -1),
            call(aten.t_copy.default, operand[0, 0]),
            call(aten.squeeze_copy.default, operand),
            call(aten.squeeze_copy.dim, operand, 1),
            call(aten.squeeze_copy.dim, operand, 0),
            call(aten.squeeze_copy.dims, operand, [0, -3]),
            call(aten.unsqueeze_copy.default, operand, -2),
            call(aten.select_copy.int, operand, -1, -2),
            call(aten.slice_copy.Tensor, operand, 2, -4, 2**63 - 1, 2),
            call(aten.slice_copy.Tensor, operand, 2, 4, 2),
            call(aten.slice_copy.Tensor, operand, 2, 7, 9),
            call(aten.narrow_copy.default, operand, 2, -3, 2),
            call(aten.diagonal_copy.default, operand, -1, 2, 3),
            call(aten.unfold_copy.default, operand, 2, 3, 2),
            call(aten.split_copy.Tensor, operand, 4, 2),
            call(aten.unsafe_split.Tensor, operand, 3, -2),
            call(aten.split_with_sizes_copy.default, operand, [1, 5, 0], 2),
            call(aten.unsafe_split_with_sizes.default, operand, [2, 2], -1),
            call(aten.unbind_copy.int, operand, 2),
        ]
    )


def test_tensors_without_dimensions_or_elements_are_copied() -> None:
    number, nothing = torch.tensor(2.0), torch.zeros(0, 3)
    check_calls(
        [
            call(aten.view_copy.default, number, [1, 1]),
            call(aten.transpose_copy.int, number, 0, -1),
            call(aten.t_copy.default, number),
            call(aten.squeeze_copy.dim, number, 0),
            call(aten.permute_copy.default, number, []),
            call(aten.expand_copy.default, number, [2, 3]),
            call(aten.unfold_copy.default, number, 0, 1, 1),
            call(aten.split_copy.Tensor, nothing, 0, 0),
            call(aten.split_copy.Tensor, nothing, 2, 1),
            call(aten.unbind_copy.int, nothing, 1),
            call(aten.view_copy.default, nothing, [3, 0]),
        ]
    )


def test_bits_are_read_as_another_dtype() -> None:
    operand = torch.randn(3, 4)
    check_calls(
        [
            call(aten.view_copy.dtype, operand, torch.int32),
            call(aten.view_copy.dtype, operand, torch.int16),
            call(aten.view_copy.dtype, operand, torch.float64),
            call(aten.view_copy.dtype, operand.bfloat16(), torch.uint8),
        ]
    )


def test_complex_numbers_are_pairs_of_real_ones() -> None:
    check_calls(
        [
            call(aten.view_as_complex_copy.default, torch.randn(3, 2)),
            call(aten.view_as_real_copy.default, torch.randn(3, dtype=torch.complex64)),
            call(aten._conj_copy.default, torch.randn(3, dtype=torch.complex64)),
            call(aten._neg_view_copy.default, torch.randn(3)),
        ]
    )
