"""Sums, products, quotients, remainders and powers agree with PyTorch on the CPU."""

from typing import Any

import pytest
import torch

from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule
from tests.support.values import FLOATS, INTEGERS, edge_values, finite, grid

aten = torch.ops.aten

SUMS = [aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor]
REMAINDERS = [aten.remainder.Tensor, aten.fmod.Tensor, aten.floor_divide.default]
MIXED = [
    (torch.float32, torch.int64),
    (torch.int64, torch.bfloat16),
    (torch.uint8, torch.int8),
    (torch.bool, torch.float16),
    (torch.bool, torch.int32),
    (torch.float32, torch.float64),
]


def finite_grid(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    operand = finite(edge_values(dtype))
    return operand[:, None], operand[None]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.complex64])
def test_sums_products_and_quotients_agree_everywhere(dtype: torch.dtype) -> None:
    one, other = grid(dtype)
    calls = [call(op, one, other) for op in [*SUMS, aten.mul.Tensor]]
    # A complex number divided by zero is infinite in a direction that C leaves open.
    calls.append(call(aten.div.Tensor, one, other[:, other[0] != 0] if dtype.is_complex else other))
    check_calls(calls)


@pytest.mark.parametrize(("one", "other"), MIXED)
def test_operands_of_two_dtypes_are_promoted(one: torch.dtype, other: torch.dtype) -> None:
    subtraction = [] if torch.bool in (one, other) else [aten.sub.Tensor]
    operators = [aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, *subtraction]
    check_calls(call(op, *grid(one, other)) for op in operators)
    zero_dim = torch.tensor(2).to(other)
    check_calls(call(op, edge_values(one), zero_dim) for op in operators)


def test_booleans_add_and_multiply_to_booleans() -> None:
    one, other = grid(torch.bool)
    check_calls([call(aten.add.Tensor, one, other), call(aten.mul.Tensor, one, other)])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.complex64])
@pytest.mark.parametrize("changing", [False, True])
def test_the_second_summand_may_be_scaled(dtype: torch.dtype, changing: bool) -> None:
    # Contiguous: with other strides PyTorch rounds the product to a narrow dtype before it adds.
    one, other = (operand.contiguous() for operand in torch.broadcast_tensors(*finite_grid(dtype)))
    factors = [1, 2, -3] + ([0.3] if dtype.is_floating_point or dtype.is_complex else [])
    calls = [call(op, one, other, alpha=alpha) for op in SUMS for alpha in factors]
    check_calls(calls, changing=changing)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("changing", [False, True])
def test_a_number_beside_a_narrow_float_is_rounded_where_pytorch_rounds_it(dtype: torch.dtype, changing: bool) -> None:
    operand = finite(edge_values(dtype))
    operators = [
        aten.add.Scalar,
        aten.sub.Scalar,
        aten.rsub.Scalar,
        aten.mul.Scalar,
        aten.div.Scalar,
        aten.remainder.Scalar,
        aten.fmod.Scalar,
        aten.floor_divide.Scalar,
        aten.pow.Tensor_Scalar,
    ]
    calls = [call(op, operand, number) for op in operators for number in (0.1, -2.7, 3)]
    exact = {"rtol": 0, "atol": 0} if dtype.itemsize == 2 else {}
    # PyTorch rounds between the factors of a third power of a narrow float.
    calls = [each for each in calls if not (each.op is aten.pow.Tensor_Scalar and (each.args[1] == 3 or not exact))]
    check_calls(calls, changing=changing, **exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_number_is_rounded_before_it_is_divided(dtype: torch.dtype) -> None:
    divisor = torch.tensor([0.0, -0.0, 1.0, -3.0, 0.1, float("inf"), float("nan")], dtype=dtype)
    for number in (1e-10, 70000.0, 3.4e38, 1e39, -1e10, 0.1, 7):  # in turn constants of the program, and arguments
        expected, found = number // divisor, (number // divisor.to("xla")).cpu()
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit() & ~found.isnan(), expected.signbit() & ~expected.isnan())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_a_number_beside_integers_promotes_by_its_kind(dtype: torch.dtype) -> None:
    operand = edge_values(dtype)
    calls = [call(op, operand, number) for op in (aten.add.Scalar, aten.mul.Scalar) for number in (3, 0.5, 1j)]
    check_calls(
        [*calls, call(aten.div.Scalar, operand, 2), call(aten.remainder.Scalar_Tensor, 7, torch.tensor([2, 3]))]
    )


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_remainders_and_rounded_quotients_agree_everywhere(dtype: torch.dtype) -> None:
    one, other = grid(dtype)
    if not dtype.is_floating_point:
        other = other[other != 0][None]
    calls = [call(op, one, other) for op in REMAINDERS]
    calls += [call(aten.div.Tensor_mode, one, other, rounding_mode=mode) for mode in (None, "floor", "trunc")]
    check_calls([*calls, call(aten.div.Scalar_mode, one, 3, rounding_mode="trunc")])


def test_whole_quotients_are_whole() -> None:
    # XLA's product with a reciprocal makes 20.5 / 20.5 less than 1, and 49 / 49 too.
    whole = torch.arange(1.0, 300.0)
    dividends, divisors = whole[:, None], whole[None]
    for divide in (aten.div.Tensor, aten.floor_divide.default, aten.remainder.Tensor):
        assert torch.equal(apply_rule(divide, dividends, divisors), divide(dividends, divisors))
    assert torch.equal(apply_rule(aten.div.Scalar, whole, 49), whole / 49)
    assert torch.equal(
        apply_rule(aten.div.Tensor_mode, dividends, divisors, rounding_mode="trunc"), (dividends // divisors)
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.0, 1.7, -3])
def test_powers_with_a_known_exponent(dtype: torch.dtype, exponent: float) -> None:
    # In a narrow dtype PyTorch rounds between the factors; ours is nearer the truth.
    tolerance = {"rtol": 1.6e-2, "atol": 1e-5} if dtype.itemsize == 2 else {}
    check_calls([call(aten.pow.Tensor_Scalar, edge_values(dtype), exponent)], **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, *INTEGERS])
def test_powers_of_two_tensors_agree_everywhere(dtype: torch.dtype) -> None:
    check_calls([call(aten.pow.Tensor_Tensor, *grid(dtype)), call(aten.pow.Scalar, 3, edge_values(dtype).abs())])


def test_powers_of_integers_wrap_around() -> None:
    base, exponent = torch.tensor([3, -3, 2, -1, 0]), torch.tensor([[0], [63], [64], [200]])
    calls = [call(aten.pow.Tensor_Tensor, base, exponent)]
    calls += [call(aten.pow.Tensor_Scalar, base.to(torch.int8), number) for number in (0, 1, 7, 100)]
    check_calls([*calls, call(aten.pow.Tensor_Scalar, torch.tensor([True, False]), 2)])


def test_powers_of_complex_numbers() -> None:
    base, exponent = torch.tensor([[1 + 2j], [-0.5j], [-3 + 0j]]), torch.tensor([0.5, 2 - 1j, -1.5])
    calls = [call(aten.pow.Tensor_Scalar, base, number) for number in (2, 0.5, -1, 1 + 1j)]
    check_calls([*calls, call(aten.pow.Tensor_Tensor, base, exponent), call(aten.pow.Scalar, 1j, exponent)])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.complex64])
@pytest.mark.parametrize("changing", [False, True])
def test_products_and_quotients_are_added(dtype: torch.dtype, changing: bool) -> None:
    operand = finite(edge_values(dtype))
    rows = [operand, operand.flip(0)[:, None], operand.roll(3)]
    calls = [call(aten.addcmul.default, *rows, value=value) for value in (1, 2, -3)]
    if not dtype.is_complex and dtype.is_floating_point:
        calls += [call(op, *rows, value=0.3) for op in (aten.addcmul.default, aten.addcdiv.default)]
    check_calls(calls, changing=changing)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64])
@pytest.mark.parametrize("changing", [False, True])
def test_interpolation_starts_at_the_nearer_end(dtype: torch.dtype, changing: bool) -> None:
    start, end = finite_grid(dtype)
    calls = [call(aten.lerp.Scalar, start, end, weight) for weight in (0.0, 0.3, 0.5, 0.9, 1.0)]
    check_calls([*calls, call(aten.lerp.Tensor, start, end, end)], changing=changing)
    got = apply_rule(aten.lerp.Scalar, start, end, 1.0).to(dtype)
    assert torch.equal(got, end.expand_as(got))


@pytest.mark.parametrize("op", [aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.remainder.Tensor], ids=str)
def test_zero_dim_and_empty_operands(op: Any) -> None:
    shapes = [((), ()), ((0, 3), (1, 3)), ((2, 1), (0,)), ((), (3,))]
    check_calls(call(op, torch.full(one, 2.5), torch.full(other, 0.75)) for one, other in shapes)


@pytest.mark.parametrize("value", [2.0, 1.5, 3])
def test_the_factor_of_integers_is_an_integer(value: float) -> None:
    def program(device: str) -> torch.Tensor:
        x = torch.tensor([3, 8192, -3], dtype=torch.int16, device=device)
        return x.addcmul_(x, x, value=value)

    assert program("xla").tolist() == program("cpu").tolist()
