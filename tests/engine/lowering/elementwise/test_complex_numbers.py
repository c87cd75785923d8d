"""Complex numbers are made, conjugated and measured as PyTorch does on the CPU."""

import pytest
import torch

from tests.support.rule_table import call, check_calls
from tests.support.values import FLOATS, edge_values

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool, torch.complex64, torch.complex128])
def test_angles_and_conjugates(dtype: torch.dtype) -> None:
    check_calls([call(op, edge_values(dtype)) for op in (aten.angle.default, aten._conj_physical.default)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_complex_number_is_made_of_its_parts_or_of_length_and_angle(dtype: torch.dtype) -> None:
    one, other = torch.tensor([[0.0], [-1.5], [2.0]], dtype=dtype), torch.tensor([0.0, 0.5, -3.0], dtype=dtype)
    check_calls([call(aten.complex.default, one, other), call(aten.polar.default, one.abs(), other)])
    check_calls([call(aten.complex.default, one[0, 0], other[:0]), call(aten.polar.default, one[1, 0].abs(), other[1])])
