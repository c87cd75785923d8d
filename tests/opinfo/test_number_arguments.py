"""No result depends on whether a Python number is a constant of a program or its argument."""

from unittest import mock

import pytest
import torch

from tests.opinfo import number_arguments
from tests.opinfo.number_arguments import calls_of, differences, takers

PARTS = 12  # programs for all operators
SAMPLE = (
    "aten._fused_adamw.tensor_lr", "aten._foreach_pow.Scalar", "aten.addmm.default", "aten.div.Scalar_mode",
    "aten.elu.default", "aten.hardtanh.default", "aten.lerp.Scalar", "aten.log_normal.default",
    "aten.native_dropout.default", "aten.pow.Tensor_Scalar", "aten.smooth_l1_loss.default", "aten.uniform.default",
)  # fmt: skip


def test_a_sample_of_operators_gives_the_same_bits_with_numbers_known_and_given() -> None:
    assert not (found := differences([call for name in SAMPLE for call in calls_of(name)])), "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_give_the_same_bits_with_numbers_known_and_given(part: int) -> None:
    calls = [call for name in list(takers())[part::PARTS] for call in calls_of(name)]
    assert not (found := differences(calls)), "\n".join(found)


def test_powers_of_complex_numbers_have_the_same_bits() -> None:
    power = torch.ops.aten.pow.Tensor_Scalar
    numbers = torch.tensor([0, 1, -2.5, 1 + 2j, complex(0, -0.0), complex("inf"), complex(1, float("nan"))])
    exponents = (0.0, 0.5, -0.5, 1.0, 2.0, 3.0, -1.0, -2.0, 1.5)
    assert not (found := differences([(power, [numbers, exponent], {}) for exponent in exponents])), "\n".join(found)


def test_a_difference_and_an_operator_without_a_result_are_found() -> None:
    add, pow = torch.ops.aten.add.Tensor, torch.ops.aten.pow.Tensor_Scalar
    refused = (pow, [torch.tensor([2]), -1], {})  # a negative power of integers
    results = iter(([torch.tensor([0.0])], "ValueError: no power", [torch.tensor([-0.0])], "ValueError: no power"))
    with mock.patch.object(number_arguments, "_called", lambda *_: next(results)):
        found = differences([(add, [torch.tensor([0.0]), 0.0], {}), refused])
    assert found == [
        "aten.add.Tensor with [0.0]: result 0, at [0]: 0.0; as arguments: -0.0",
        "aten.pow.Tensor_Scalar refuses each call: ValueError: no power",
    ]
