"""Element-wise functions of one operand agree with PyTorch on the CPU, and with the float64 truth."""

import math
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

from tests.support.boundaries import FLOAT8, boundaries, differences
from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule
from tests.support.topologies import forms_of_a_tpu as forms_of_a_tpu
from tests.support.values import FLOATS, INF, INTEGERS, NAN, edge_values, finite, grid
from tests.support.ways_to_run import WAYS, made_to_run
from torch_xla._engine.lowering.elementwise.pointwise import SAME_DTYPE, TO_FLOAT, TWO_TO_FLOAT

aten = torch.ops.aten

REALS = [*FLOATS, torch.int64, torch.uint8, torch.bool]
WITHOUT_BOOL = {aten.abs.default, aten.neg.default, aten.frac.default}
OF_FLOATS = {aten.frac.default}
# PyTorch has no rounding of complex numbers and no sign but sgn.
OF_COMPLEX = {aten.abs.default, aten.neg.default, aten.sgn.default}


def same_dtype_operators(dtype: torch.dtype) -> list[Any]:
    rounding = {aten.ceil.default, aten.floor.default, aten.round.default, aten.trunc.default}
    return [
        op
        for op in SAME_DTYPE
        if not (dtype is torch.bool and op in WITHOUT_BOOL | rounding)
        and not (not dtype.is_floating_point and op in OF_FLOATS)
        and not (dtype.is_complex and op not in OF_COMPLEX)
    ]


@pytest.mark.parametrize("dtype", REALS)
def test_functions_of_real_numbers_agree_everywhere(dtype: torch.dtype) -> None:
    check_calls(call(op, edge_values(dtype)) for op in [*TO_FLOAT, *same_dtype_operators(dtype)])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_functions_of_complex_numbers_agree_on_branch_cuts_too(dtype: torch.dtype) -> None:
    of_reals = {aten.deg2rad.default, aten.rad2deg.default}
    operators = [op for op in TO_FLOAT if op not in of_reals] + same_dtype_operators(dtype)
    values = edge_values(dtype)
    # Complex numbers with an infinite part are never close to each other.
    nonzero = {aten.log2.default, aten.log10.default}
    check_calls(call(op, values[values != 0] if op in nonzero else values) for op in operators)


def test_functions_of_known_zeros_have_the_signs_of_the_cpu() -> None:
    """XLA computes them when it compiles."""

    def results(device: str) -> list[torch.Tensor]:
        zeros = [torch.full((2,), number, device=device) for number in (-0.0, 0.0)]
        return [op(each) for op in [*TO_FLOAT, *SAME_DTYPE] for each in zeros]

    operators = [op for op in [*TO_FLOAT, *SAME_DTYPE] for _ in range(2)]
    for op, made, expected in zip(operators, results("xla"), results("cpu"), strict=True):
        is_zero = expected == 0
        assert torch.equal(made.cpu().signbit() & is_zero, expected.signbit() & is_zero), op


def test_the_complex_logarithm_of_zero_is_infinite_and_keeps_its_angle() -> None:
    zeros = torch.complex(torch.tensor([0.0, 0.0, -0.0, -0.0]), torch.tensor([0.0, -0.0, 0.0, -0.0]))
    for op in (aten.log2.default, aten.log10.default):
        ours, theirs = apply_rule(op, zeros), op(zeros)
        torch.testing.assert_close(torch.view_as_real(ours), torch.view_as_real(theirs))


def test_zero_dim_and_empty_tensors_keep_their_shape() -> None:
    for operand in (torch.tensor(0.75), torch.zeros(0, 3)):
        check_calls(call(op, operand) for op in [*TO_FLOAT, *SAME_DTYPE])


def error_beside_pytorch(op: Any, operand: torch.Tensor) -> float:
    """Our worst distance from the float64 truth, in units of the one PyTorch's own float32 has, or of a rounding."""
    exact = op(operand.double())
    resolution = torch.finfo(torch.float32).eps * exact.abs().clamp_min(1)
    allowed = torch.maximum((op(operand).double() - exact).abs(), resolution)
    ours = apply_rule(op, operand).double()
    distance = torch.where(ours == exact.float().double(), 0, (ours - exact).abs() / allowed)
    return distance[exact.isfinite()].max().item()


ACCURATE = {
    aten.cosh.default: (-88, 88),
    aten.sinh.default: (-88, 88),
    aten.exp.default: (-87, 88),
    aten.exp2.default: (-126, 127),
    aten.expm1.default: (-20, 88),
    aten.log1p.default: (-0.999, 50),
    aten.log2.default: (1e-3, 1e3),
    aten.log10.default: (1e-3, 1e3),
    aten.sigmoid.default: (-80, 80),
    aten.tanh.default: (-20, 20),
    aten.atanh.default: (-0.999, 0.999),
    aten.asinh.default: (-1e3, 1e3),
    aten.sinc.default: (-3, 3),
}


@pytest.mark.parametrize("op", ACCURATE, ids=str)
def test_float32_is_as_near_the_truth_as_pytorch(op: Any) -> None:
    low, high = ACCURATE[op]
    operand = torch.cat([torch.linspace(low, high, 2001), torch.linspace(max(low, -1e-3), 1e-3, 201)])
    assert error_beside_pytorch(op, operand) <= 4


def test_log1p_of_doubles_is_exact_to_two_roundings() -> None:
    tiny = torch.logspace(-300, 0, 601, dtype=torch.float64)
    operand = torch.cat([torch.linspace(-0.999, 3, 4001, dtype=torch.float64), tiny, -tiny, 1 / tiny])
    truth = torch.tensor([math.log1p(x) if x > -1 else -INF for x in operand.tolist()], dtype=torch.float64)
    torch.testing.assert_close(apply_rule(aten.log1p.default, operand), truth, rtol=2 * 2**-52, atol=0)
    edges = torch.tensor([-0.0, INF, -INF, -1.0, -2.0, NAN], dtype=torch.float64)
    torch.testing.assert_close(apply_rule(aten.log1p.default, edges), edges.log1p(), equal_nan=True, rtol=0, atol=0)


def test_logarithms_of_powers_of_their_base_are_whole() -> None:
    twos, tens = torch.arange(-120.0, 120.0), torch.arange(-30.0, 30.0)
    assert torch.equal(apply_rule(aten.log2.default, 2**twos), twos)
    assert torch.equal(apply_rule(aten.exp2.default, twos), 2**twos)
    assert torch.equal(apply_rule(aten.log10.default, (10 ** tens.double()).float()), tens)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("decimals", [-1, 0, 2])
def test_rounding_to_decimals(dtype: torch.dtype, decimals: int) -> None:
    operand = torch.tensor([0.05, 1.005, -2.675, 12.5, 15.0, 25.0, 0.0, INF, NAN, 1234.567], dtype=dtype)
    check_calls([call(aten.round.decimals, operand, decimals=decimals)], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64, torch.int64, torch.bool])
def test_what_is_no_number_is_replaced(dtype: torch.dtype) -> None:
    operand = torch.tensor([NAN, INF, -INF, 1.0]).to(dtype) if dtype.is_floating_point else edge_values(dtype)
    if dtype.is_complex:
        operand = torch.tensor([complex(NAN, INF), complex(-INF, 1)])
    check_calls(call(aten.nan_to_num.default, operand, *given) for given in [(), (1.0, 2.0, -3.0), (None, 5.0)])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("changing", [False, True])
def test_logits_and_their_gradient(dtype: torch.dtype, changing: bool) -> None:
    operand = torch.tensor([0.0, 0.05, 0.25, 0.5, 0.9, 1.0, 2.0, -1.0, NAN], dtype=dtype)
    gradient = torch.tensor([1.0, -0.5, 3.0, 1, 1, 1, 1, 1, 1], dtype=dtype)
    calls = [call(aten.logit_backward.default, gradient, operand, eps) for eps in (None, 0.1, -1.0)]
    # PyTorch rounds the quotient inside the logarithm to the narrow dtype, we do not.
    if dtype.itemsize > 2:
        calls += [call(aten.logit.default, operand, eps) for eps in (None, 0.1, 0.7, -1.0, NAN)]
    check_calls(calls, changing=changing)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_gradients_by_the_output(dtype: torch.dtype) -> None:
    gradient, output = grid(dtype)
    gradient, output = finite(gradient)[:, None], finite(output)[None]
    operators = [aten.sigmoid_backward.default, aten.tanh_backward.default]
    check_calls(call(op, gradient, output) for op in operators)


def test_a_number_is_split_into_mantissa_and_exponent() -> None:
    for dtype in FLOATS:
        check_calls([call(aten.frexp.Tensor, edge_values(dtype))])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool])
def test_functions_of_two_operands_agree_everywhere(dtype: torch.dtype) -> None:
    of_floats = {aten.hypot.default, aten.logaddexp.default, aten.logaddexp2.default}
    operators = [ops[0] for ops in TWO_TO_FLOAT if dtype.is_floating_point or ops[0] not in of_floats]
    check_calls(call(op, *grid(dtype)) for op in [*operators, aten.heaviside.default])


@pytest.mark.parametrize("changing", [False, True])
def test_one_of_two_operands_may_be_a_number(changing: bool) -> None:
    operand = edge_values(torch.float32)
    calls = [
        call(aten.xlogy.Scalar_Other, operand, 2.5),
        call(aten.xlogy.Scalar_Self, 2.5, operand),
        call(aten.copysign.Scalar, operand, -0.5),
        call(aten.xlogy.Scalar_Self, 2, edge_values(torch.int64)),
    ]
    check_calls(calls, changing=changing)


def test_the_sum_of_complex_exponentials_has_a_logarithm() -> None:
    one, other = torch.tensor([[1 + 2j], [-3j]]), torch.tensor([[2 - 1j, 1 + 1j, -50j]])
    check_calls([call(aten.logaddexp.default, one, other)])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_divisors_and_multiples(dtype: torch.dtype) -> None:
    # Without the least number of a signed dtype: its absolute value is none of the dtype.
    values = edge_values(dtype)[:-1]
    check_calls(call(op, values[:, None], values[None]) for op in [aten.gcd.default, aten.lcm.default])


def test_neighbours_of_a_number() -> None:
    check_calls([call(aten.nextafter.default, *grid(dtype)) for dtype in FLOATS[:3]], rtol=0, atol=0)


def test_a_power_of_two_scales() -> None:
    exponents = torch.tensor([-3, 0, 5, 90])
    calls = [call(aten.ldexp.Tensor, edge_values(dtype)[:, None], exponents) for dtype in FLOATS[:3]]
    calls += [call(aten.ldexp.Tensor, torch.tensor([3, -4]), torch.tensor([0.5, 2.0]))]
    check_calls([*calls, call(aten.ldexp.Tensor, torch.tensor([1 + 2j]), exponents)])


def test_a_float_is_scaled_though_the_power_of_two_is_infinite_or_zero() -> None:
    for dtype, powers in (
        (torch.float32, (-100.0, 100.0)),
        (torch.float64, (-1000.0, 1000.0)),
        (torch.bfloat16, (50, 90)),
    ):
        numbers = torch.tensor(powers, dtype=torch.float64).exp2().to(dtype)[:, None]
        check_calls(
            [call(aten.ldexp.Tensor, numbers, torch.tensor([140, -140, 200, -200, 1070, -1070]))], rtol=0, atol=0
        )
    check_calls([call(aten.ldexp.Tensor, torch.tensor([1.5], dtype=torch.float16) / 1024, torch.tensor([20, -3]))])


@pytest.mark.parametrize("way", WAYS)
def test_a_float_is_scaled_to_a_subnormal_number_and_back(way: str) -> None:
    numbers = torch.tensor([1.0, -1.5, 3e38, 1e-40, -1.4e-45, 0.0, -0.0, math.inf]).repeat_interleave(7)
    exponents = torch.tensor([-149, -150, -127, -276, 23, 149, 277]).repeat(8)
    with made_to_run(way, torch.ldexp) as scaled:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            result = scaled(numbers.to(dtype).to("xla"), exponents.to("xla")).cpu()
            expected = torch.ldexp(numbers.to(dtype), exponents)
            assert torch.equal(result, expected)
            assert torch.equal(result.signbit(), expected.signbit())


@pytest.mark.parametrize("rule", TWO_TO_FLOAT.values(), ids=lambda rule: rule.__name__)
def test_operands_of_different_ranks_are_broadcast(rule: Callable[..., jax.Array]) -> None:
    operands = (jax.ShapeDtypeStruct(size, "float32") for size in ((3,), (2, 2, 1)))
    assert jax.eval_shape(rule, *operands).shape == (2, 2, 3)


def test_where_promotes_floats_of_eight_bits_with_what_has_no_dimensions() -> None:
    condition = torch.tensor([True, True, True, False])
    for dtype in FLOAT8:
        x = torch.tensor([0.5, 3.0, 256.0, 2.0]).to(dtype)
        for other in (torch.tensor(1), torch.tensor(True), *(torch.tensor(1).to(each) for each in (*FLOAT8, *FLOATS))):
            for operands in ((x, other), (other, x)):
                made = torch.where(condition.to("xla"), *(each.to("xla") for each in operands)).cpu()
                expected = torch.where(condition, *operands)
                assert made.dtype is expected.dtype
                assert not differences(made, expected).any(), f"{dtype} and {other.dtype}"


def test_subnormal_numbers_have_a_mantissa_and_an_exponent() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = boundaries(dtype)[:: 1 if dtype is torch.float32 else 7]
        for made, expected in zip(torch.frexp(x.to("xla")), torch.frexp(x), strict=True):
            assert not differences(made.cpu(), expected).any(), dtype


def test_where_promotes_and_takes_a_condition_of_bytes() -> None:
    condition = torch.tensor([True, False, True])
    one, other = torch.tensor([1, 2, 3]), torch.tensor([0.5, 1.5, NAN])
    check_calls(
        [
            call(aten.where.self, condition, one, other),
            call(aten.where.self, condition[:, None], one, torch.tensor(2.5, dtype=torch.float64)),
            call(aten.where.self, condition, one, one.to(torch.int8)),
            call(aten.where.self, torch.tensor(False), other, 1j * other),
        ]
    )


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_choice_takes_a_scalar_of_eight_bits(dtype: torch.dtype) -> None:
    operand, scalar = torch.tensor([1.5, -2.0]), torch.tensor(3.0).to(dtype)
    for function in (lambda a, b: torch.where(a > 0, a, b), lambda a, b: torch.where(a > 0, b, a)):
        found, expected = function(operand.to("xla"), scalar.to("xla")), function(operand, scalar)
        assert found.dtype is expected.dtype and torch.equal(found.cpu(), expected)


def test_atanh_of_doubles_is_exact_to_a_few_roundings() -> None:
    x = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    torch.testing.assert_close(apply_rule(aten.atanh.default, x), x.atanh(), rtol=1e-15, atol=0)
    outside = torch.tensor([2.0, -1e300, float("inf"), float("nan")], dtype=torch.float64)
    assert apply_rule(aten.atanh.default, outside).isnan().all()


def test_the_magnitude_of_complex_numbers_is_the_nearest_float() -> None:
    numbers = torch.randn(1000, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    nearest = numbers.to(torch.complex128).abs().float()
    assert torch.equal(numbers.to("xla").abs().cpu(), nearest)
    edges = torch.tensor([complex(a, b) for a in (0, INF, -INF, NAN, 3e38) for b in (-0.0, INF, NAN, 3e38)])
    torch.testing.assert_close(edges.to("xla").abs().cpu(), edges.abs(), equal_nan=True)


def test_the_gradient_of_a_least_magnitude_in_a_wider_dtype_is_of_one_element() -> None:
    for seed in range(5):
        numbers = torch.randn(23, 23, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))
        leaf = numbers.to("xla").requires_grad_()
        torch.linalg.vector_norm(leaf, -INF, dtype=torch.complex128).backward()
        assert leaf.grad is not None and int((leaf.grad != 0).sum()) == 1


@pytest.mark.usefixtures("forms_of_a_tpu")
def test_hypot_of_float64_as_a_tpu_has_it() -> None:
    sides = torch.tensor([0.0, -0.0, 3.0, -4.0, 1e300, 1e-300, 1e-200, INF, -INF, NAN], dtype=torch.float64)
    first, second = sides[:, None], sides[None]
    got = apply_rule(aten.hypot.default, first, second)
    torch.testing.assert_close(got, torch.hypot(first, second), rtol=1e-15, atol=0, equal_nan=True)
