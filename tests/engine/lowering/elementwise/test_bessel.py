"""Bessel functions and Airy's function are right to float64, where PyTorch's own are right to float32."""

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule
from tests.support.values import edge_values
from torch_xla._engine.lowering.elementwise.bessel import FUNCTIONS

aten = torch.ops.aten

TRUTH: dict[Any, Callable[[float], Any]] = {
    aten.special_airy_ai.default: mpmath.airyai,
    aten.special_bessel_j0.default: lambda x: mpmath.besselj(0, x),
    aten.special_bessel_j1.default: lambda x: mpmath.besselj(1, x),
    aten.special_bessel_y0.default: lambda x: mpmath.bessely(0, x),
    aten.special_bessel_y1.default: lambda x: mpmath.bessely(1, x),
    aten.special_modified_bessel_k0.default: lambda x: mpmath.besselk(0, x),
    aten.special_modified_bessel_k1.default: lambda x: mpmath.besselk(1, x),
    aten.special_scaled_modified_bessel_k0.default: lambda x: mpmath.besselk(0, x) * mpmath.exp(x),
    aten.special_scaled_modified_bessel_k1.default: lambda x: mpmath.besselk(1, x) * mpmath.exp(x),
    aten.special_spherical_bessel_j0.default: lambda x: mpmath.sin(x) / x,
}
PLACES = torch.tensor(
    [1e-3, 0.1, 0.9, 1.9, 2.0, 2.1, 4.5, 8.9, 9.1, 13.7, 24.9, 25.0, 25.1, 47.3, 100.0], dtype=torch.float64
)


@pytest.mark.parametrize("op", FUNCTIONS, ids=str)
def test_float64_is_exact_on_both_sides_of_every_seam(op: Any) -> None:
    places = torch.cat([-PLACES, PLACES]) if op is aten.special_airy_ai.default else PLACES
    exact = torch.tensor([float(TRUTH[op](x)) for x in places.tolist()], dtype=torch.float64)
    torch.testing.assert_close(apply_rule(op, places), exact, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_zeros_negative_numbers_and_infinities_agree_with_pytorch(dtype: torch.dtype) -> None:
    operand = edge_values(dtype)
    # Not so far out that PyTorch's phase of the waves is lost.
    check_calls([call(op, operand[(operand.abs() < 1e3) | operand.isinf() | operand.isnan()]) for op in FUNCTIONS])


def test_zero_dim_and_empty_tensors_keep_their_shape() -> None:
    check_calls(call(op, operand) for op in FUNCTIONS for operand in (torch.tensor(1.5), torch.zeros(0, 2)))
