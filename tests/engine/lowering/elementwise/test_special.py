"""Special functions agree with PyTorch on the CPU, and with the float64 truth."""

from functools import partial
from typing import Any

import jax
import mpmath
import numpy as np
import pytest
import torch

from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule
from tests.support.topologies import forms_of_a_tpu as forms_of_a_tpu
from tests.support.values import INF, NAN, edge_values, grid
from torch_xla._engine.lowering.elementwise.special import ONE
from torch_xla._engine.lowering.machinery.registry import all_rules

aten = torch.ops.aten

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
# PyTorch sums the series of i0e in bfloat16, and has no such kernel for the others.
NOT_IN_BFLOAT16 = {
    aten.special_i0e.default,
    aten.special_i1.default,
    aten.special_i1e.default,
    aten.special_erfcx.default,
    aten.special_log_ndtr.default,
    aten.special_modified_bessel_i0.default,
    aten.special_modified_bessel_i1.default,
    aten.special_ndtri.default,
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_one_operand_agree_everywhere(dtype: torch.dtype) -> None:
    operators = [op for op in ONE if dtype is not torch.bfloat16 or op not in NOT_IN_BFLOAT16]
    check_calls(call(op, edge_values(dtype)) for op in operators)


def test_zero_dim_and_empty_tensors_keep_their_shape() -> None:
    check_calls(call(op, operand) for op in ONE for operand in (torch.tensor(0.3), torch.zeros(0, 2)))


ACCURATE = {
    aten.erf.default: (-4, 4),
    aten.erfc.default: (-4, 9),
    aten.erfinv.default: (-0.99999, 0.99999),
    aten.lgamma.default: (-3.99, 30),
    aten.digamma.default: (0.01, 30),
    aten.special_erfcx.default: (-5, 50),
    aten.special_log_ndtr.default: (-30, 8),
    aten.special_ndtri.default: (1e-6, 1 - 1e-6),
}


@pytest.mark.parametrize("op", ACCURATE, ids=str)
def test_float32_is_as_near_the_truth_as_pytorch(op: Any) -> None:
    low, high = ACCURATE[op]
    operand = torch.linspace(low, high, 4001)
    exact = op(operand.double())
    allowed = torch.maximum((op(operand) - exact).abs(), torch.finfo(torch.float32).eps * exact.abs().clamp_min(1))
    ours = apply_rule(op, operand).float().double()
    assert ((ours - exact).abs() / allowed).max() <= 4


def test_the_tails_of_the_inverse_error_function_are_exact_in_float64() -> None:
    operand = torch.tensor([1 - 1e-7, 0.3, -0.999, 1e-20], dtype=torch.float64)
    torch.testing.assert_close(apply_rule(aten.erfinv.default, operand), torch.erfinv(operand), rtol=1e-15, atol=0)


def test_the_scaled_error_function_is_off_by_a_few_roundings_in_float64() -> None:
    operand = torch.cat([torch.linspace(-26.5, 26, 1001), torch.logspace(-8, 1.4, 200)]).double() / 0.9999
    with mpmath.workdps(40):
        exact = [float(mpmath.exp(mpmath.mpf(x) ** 2) * mpmath.erfc(x)) for x in operand.tolist()]
    expected = torch.tensor(exact, dtype=torch.float64)
    torch.testing.assert_close(apply_rule(aten.special_erfcx.default, operand), expected, rtol=1e-15, atol=0)
    operand = torch.tensor([-torch.inf, -27.0, -0.0, 1e5, 1e300, torch.inf, torch.nan], dtype=torch.float64)
    found = apply_rule(aten.special_erfcx.default, operand)
    torch.testing.assert_close(found, torch.special.erfcx(operand), rtol=1e-15, atol=0, equal_nan=True)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_derivatives_of_the_digamma_function(order: int, dtype: torch.dtype) -> None:
    operand = torch.tensor([0.0, 0.25, 1.0, 2.5, 30.0, -0.25, -1.5, -2.75], dtype=dtype)
    check_calls(
        [call(aten.polygamma.default, order, operand), call(aten.polygamma.default, order, torch.tensor([3, 4]))]
    )


@pytest.mark.parametrize("order", [1, 2, 3, 6])
def test_they_reach_far_to_the_left(order: int) -> None:
    places = [-20.3, -3.3, -0.7, 0.2, 8.0]
    exact = torch.tensor([float(mpmath.polygamma(order, x)) for x in places], dtype=torch.float64)
    got = apply_rule(aten.polygamma.default, order, torch.tensor(places, dtype=torch.float64))
    torch.testing.assert_close(got, exact, rtol=1e-12, atol=0)
    assert apply_rule(aten.polygamma.default, order, torch.tensor(-2.0)).isinf()


def test_the_zeta_function_takes_negative_numbers() -> None:
    exponents = torch.tensor([[1.0], [0.5], [2.0], [3.0], [2.5], [NAN]])
    places = torch.tensor([1.0, 0.25, 30.0, 0.0, -1.0, -1.5, -60.5, NAN])
    calls = [call(aten.special_zeta.default, exponents, places), call(aten.special_zeta.other_scalar, places, 2.5)]
    check_calls([*calls, call(aten.special_zeta.self_scalar, 2.0, places.double())])


@pytest.mark.usefixtures("forms_of_a_tpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_zeta_function_of_a_tpu_has_the_digits_of_its_operands(dtype: torch.dtype) -> None:
    places = torch.tensor([0.2, 1.0, 2.5, 8.0, 30.0, -0.25, -1.5, -20.3], dtype=dtype)
    exponents = torch.tensor([1.5, 2.0, 6.0, 2.0, 3.0, 2.0, 3.0, 4.0], dtype=dtype)
    # At -1.5 the sixth derivative is a small difference of large terms.
    digits = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float64: 1e-10}[dtype]
    for order in (1, 2, 3, 6):
        exact = torch.tensor([float(mpmath.polygamma(order, x)) for x in places.tolist()], dtype=torch.float64)
        found = apply_rule(aten.polygamma.default, order, places)
        torch.testing.assert_close(found.double(), exact, rtol=digits, atol=0)
    exact = torch.special.zeta(exponents.double()[:5], places.double()[:5])
    found = apply_rule(aten.special_zeta.default, exponents[:5], places[:5])
    torch.testing.assert_close(found.double(), exact, rtol=digits, atol=0)
    with jax.enable_x64(True):
        like = np.float64 if dtype is torch.float64 else np.float32
        jaxpr = str(jax.make_jaxpr(partial(all_rules()[aten.polygamma.default].lower, 1))(np.ones(3, like)))
    assert f":f{8 * np.dtype(like).itemsize}[3] = zeta" in jaxpr


@pytest.mark.parametrize("op", [aten.igamma.default, aten.igammac.default], ids=str)
def test_incomplete_gamma_functions_have_their_limits(op: Any) -> None:
    values = torch.tensor([0.0, 1e-3, 0.5, 1.0, 2.5, 60.0, 1e4, INF, -1.0])
    check_calls(call(op, values.to(dtype)[:, None], values.to(dtype)[None]) for dtype in (torch.float32, torch.float64))


@pytest.mark.parametrize("changing", [False, True])
def test_products_with_logarithms(changing: bool) -> None:
    operand = edge_values(torch.float32)
    calls = [call(aten.special_xlog1py.default, *grid(dtype)) for dtype in DTYPES]
    calls += [call(aten.special_xlog1py.self_scalar, 2.5, operand), call(aten.special_xlog1py.other_scalar, operand, 3)]
    check_calls(calls, changing=changing)


def test_the_multivariate_gamma_function() -> None:
    check_calls([call(aten.mvlgamma.default, edge_values(d).abs() + 2, 3) for d in (torch.float32, torch.float64)])
    check_calls([call(aten.mvlgamma.default, torch.tensor([3, 4]), 2)])


def test_the_first_derivative_of_digamma_goes_to_zero() -> None:
    x = torch.tensor([float("inf"), 1.0], dtype=torch.float64)
    assert torch.allclose(torch.special.polygamma(1, x.to("xla")).cpu(), torch.special.polygamma(1, x))


@pytest.mark.parametrize("op", [torch.ops.aten.tanh.default, torch.ops.aten.erf.default], ids=str)
def test_what_approaches_one_is_exact_to_two_roundings_there(op: Any) -> None:
    x = torch.cat([torch.linspace(-10, -1, 20001), torch.linspace(1, 10, 20001), torch.tensor([INF, -INF])])
    exact = op(x.double())
    error = (apply_rule(op, x).double() - exact).abs()
    assert (error <= torch.finfo(torch.float32).eps * exact.abs()).all()
    assert apply_rule(op, torch.tensor([NAN, -0.0])).isnan().tolist() == [True, False]
    assert apply_rule(op, torch.tensor([-0.0])).signbit().all()


def test_incomplete_gammas_of_large_numbers_end_and_are_exact() -> None:
    sizes = torch.tensor([300.0, 1.9e3, 2.1e3, 1e4, 1e5, 1e6, 9e7, 1e9, 1e12], dtype=torch.float64)
    deviations = torch.tensor([-2.0, -0.1, 0.0, 0.5, 2.0, 15.0], dtype=torch.float64)
    a = sizes[:, None].expand(-1, 6).contiguous()
    x = a + deviations * a.sqrt()
    lower, upper = (apply_rule(op, a, x) for op in (aten.igamma.default, aten.igammac.default))
    # PyTorch's own are exact to 2e-10 of the value here.
    torch.testing.assert_close(lower, torch.igamma(a, x), rtol=1e-9, atol=0)
    torch.testing.assert_close(upper, torch.igammac(a, x), rtol=1e-9, atol=0)
    # XLA's series of 1,900 loses 1.7e-12.
    torch.testing.assert_close(lower + upper, torch.ones_like(a), rtol=0, atol=4e-12)
    torch.testing.assert_close((lower + upper)[2:], torch.ones_like(a)[2:], rtol=0, atol=1e-13)
    large = torch.tensor([1e16, 1e30, 1e300], dtype=torch.float64)
    for op in (aten.igamma.default, aten.igammac.default):
        torch.testing.assert_close(apply_rule(op, large, large), torch.full_like(large, 0.5), rtol=0, atol=2e-9)
    assert apply_rule(aten.igamma.default, large, 2 * large).tolist() == [1, 1, 1]
    assert apply_rule(aten.igammac.default, large, 2 * large).tolist() == [0, 0, 0]
