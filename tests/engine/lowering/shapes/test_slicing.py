"""Writes to parts of tensors, and gradients of reading parts, agree with PyTorch on the CPU."""

import pytest
import torch

import torch_xla._engine.lowering.shapes.slicing  # noqa: F401
from tests.support.rule_table import call, check_calls

aten = torch.ops.aten

FAR = 2**63 - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_slices_are_written_and_spread(dtype: torch.dtype) -> None:
    operand = (torch.randn(4, 7, 3) * 3).to(dtype)
    slices = [(None, None, 1), (2, 5, 1), (-3, FAR, 1), (1, 7, 3), (0, -1, 2), (5, 2, 1), (9, 12, 2)]
    calls = []
    for dim in (1, -2):
        for start, end, step in slices:
            source = aten.slice.Tensor(operand, dim, start, end, step) + 1
            calls.append(call(aten.slice_scatter.default, operand, source, dim, start, end, step))
            if start is not None and end is not None:
                calls.append(call(aten.slice_backward.default, source, [4, 7, 3], dim, start, end, step))
    check_calls(calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_selections_are_written_and_spread(dtype: torch.dtype) -> None:
    operand = (torch.randn(4, 5) * 3).to(dtype)
    calls = []
    for dim, index in [(0, 0), (0, -1), (1, 3), (-1, -5)]:
        source = operand.select(dim, index) + 1
        calls.append(call(aten.select_scatter.default, operand, source, dim, index))
        calls.append(call(aten.select_backward.default, source, [4, 5], dim, index))
    check_calls([*calls, call(aten.select_backward.default, torch.tensor(2.0), [3], 0, 1)])


@pytest.mark.parametrize("offset", [0, 1, -1, 3, -2, 5, -4])
def test_diagonals_are_written_and_spread(offset: int) -> None:
    operand = torch.randn(4, 2, 5)
    calls = []
    for dim1, dim2 in [(0, 2), (2, 0), (-1, -2), (1, 0)]:
        diagonal = operand.diagonal(offset, dim1, dim2) if abs(offset) <= 1 else operand.diagonal(offset, 0, 2)
        dims = (dim1, dim2) if abs(offset) <= 1 else (0, 2)
        calls.append(call(aten.diagonal_scatter.default, operand, diagonal + 1, offset, *dims))
        calls.append(call(aten.diagonal_backward.default, diagonal, [4, 2, 5], offset, *dims))
    check_calls(calls)


@pytest.mark.parametrize("offset", [0, 2, -1])
def test_diagonals_are_embedded(offset: int) -> None:
    calls = [call(aten.diag_embed.default, torch.randn(2, 3), offset, *dims) for dims in ((-2, -1), (0, 2), (1, -3))]
    check_calls([*calls, call(aten.diag_embed.default, torch.tensor([1, 2, 3]), offset)])
    check_calls([call(aten.diag_embed.default, torch.zeros(2, 0), offset)])


def test_what_is_scattered_into_a_selection_has_its_size() -> None:
    x = torch.ones(2, 3, device="xla")
    with pytest.raises(RuntimeError, match=r"src size = \[2\], slice size = \[3\]"):
        torch.select_scatter(x, x.select(1, 0), 0, 0)
    with pytest.raises(RuntimeError, match=r"src size = \[2, 1\], slice size = \[1, 3\]"):
        torch.slice_scatter(x, x[:, :1], 0, 0, 1)
