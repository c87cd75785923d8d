"""Orthogonal polynomials agree with PyTorch on the CPU."""

from typing import Any

import pytest
import torch

from tests.support.rule_table import call, check_calls
from torch_xla._engine.lowering.elementwise.polynomials import POLYNOMIALS

DEGREES = torch.tensor([-1.0, 0, 1, 2, 3, 2.7, 5, 7, 12])


# Quickly compiled, one value in 360 rounds to another side.
CLOSE = torch.ops.aten.special_hermite_polynomial_he


@pytest.mark.parametrize(
    "packet", [pytest.param(each, marks=[pytest.mark.slow] * (each is CLOSE)) for each in POLYNOMIALS], ids=str
)
def test_polynomials_of_every_degree(packet: Any) -> None:
    places = torch.linspace(-1.5, 2, 40)
    check_calls([call(packet.default, places[:, None], DEGREES[None])])
    check_calls([call(packet.n_scalar, places, 4)], changing=True)


def test_places_or_degrees_may_be_of_any_shape_and_dtype() -> None:
    packet = torch.ops.aten.special_legendre_polynomial_p
    check_calls(
        [
            call(packet.x_scalar, 0.3, DEGREES.double()),
            call(packet.default, torch.tensor(0.4), torch.tensor(3)),
            call(packet.default, torch.zeros(0), torch.zeros(0)),
            call(packet.default, torch.tensor([1, 2]), torch.tensor([3, 1])),
        ]
    )


@pytest.mark.parametrize("packet", POLYNOMIALS, ids=str)
def test_a_degree_that_no_integer_holds_gives_0(packet: Any) -> None:
    degrees = torch.tensor([float("inf"), -float("inf"), float("nan"), 2.0**63, 1e19, 2.0])
    check_calls([call(packet.x_scalar, 0.3, degrees), call(packet.default, torch.tensor([[0.3], [2.0]]), degrees)])
