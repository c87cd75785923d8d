"""Reductions agree with PyTorch on the CPU."""

from typing import Any

import pytest
import torch

import torch_xla._engine.lowering.reductions.cumulative
import torch_xla._engine.lowering.reductions.reduction  # noqa: F401
from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule

aten = torch.ops.aten

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
REALS = [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool]
COMPLEX = [torch.complex64, torch.complex128]
NAN, INF = float("nan"), float("inf")


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.promote_types(dtype, torch.float32)).to(dtype)
    return torch.randint(0, 9, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [*REALS, torch.complex64])
def test_sums_and_products_agree_in_every_dtype(dtype: torch.dtype) -> None:
    operand = sample(dtype, 4, 5, 3)
    calls = [
        call(aten.sum.default, operand),
        call(aten.sum.dim_IntList, operand, [0, -1], True),
        call(aten.sum.dim_IntList, operand, [1]),
        call(aten.prod.dim_int, operand[:, :2], 1),
        call(aten.prod.default, operand[0, :2]),
        call(aten.count_nonzero.default, operand),
    ]
    if dtype not in (torch.float16, torch.bfloat16, torch.bool):
        calls.append(call(aten.trace.default, operand[0]))
    if dtype.is_floating_point or dtype.is_complex:
        calls += [call(aten.mean.default, operand), call(aten.mean.dim, operand, [1, 2], True)]
    check_calls(calls)


@pytest.mark.parametrize("op", [aten.sum.dim_IntList, aten.mean.dim, aten.nansum.default])
def test_dimensions_may_be_listed_or_none_at_all(op: Any) -> None:
    operand = sample(torch.float32, 2, 3, 4)
    dims = [None, [], [0], [-1], [0, 2], [-3, 1, 2]]
    check_calls(call(op, operand, dim, keepdim) for dim in dims for keepdim in (False, True))


@pytest.mark.parametrize("operand", [torch.tensor(2.5), torch.tensor(True), torch.tensor(NAN)], ids=str)
def test_a_tensor_without_dimensions_reduces_to_itself(operand: torch.Tensor) -> None:
    lists = [aten.sum.dim_IntList, aten.any.dims, aten.all.dims, aten.nansum.default]
    single = [aten.max.dim, aten.min.dim, aten.prod.dim_int, aten.any.dim, aten.all.dim]
    if operand.is_floating_point():
        lists, single = [*lists, aten.mean.dim], [*single, aten.argmax.default]
    calls = [call(op, operand, dim, True) for op in lists for dim in (None, [], [0], [-1])]
    check_calls(calls + [call(op, operand, dim, dim == 0) for op in single for dim in (-1, 0)])


def test_empty_tensors_reduce_to_the_neutral_element() -> None:
    calls = []
    for shape in [(0,), (0, 3), (3, 0), (2, 0, 3)]:
        operand = torch.zeros(shape)
        for op in (aten.sum.default, aten.prod.default, aten.mean.default, aten.any.default, aten.all.default):
            calls.append(call(op, operand))
        for op in (aten.sum.dim_IntList, aten.mean.dim, aten.var.correction, aten.count_nonzero.dim_IntList):
            calls.append(call(op, operand, [0]))
        calls.append(call(aten.logsumexp.default, operand, [-1]))
    calls.append(call(aten.max.dim, torch.zeros(2, 0), 0))
    calls.append(call(aten.argmax.default, torch.zeros(2, 0), 0))
    check_calls(calls)


def test_a_requested_dtype_is_the_one_added_up_in() -> None:
    check_calls(
        [
            call(aten.sum.default, sample(torch.float32, 50), dtype=torch.float64),
            call(aten.sum.dim_IntList, sample(torch.float32, 5, 5) * 3, [0], dtype=torch.int32),
            call(aten.mean.default, sample(torch.int64, 5, 5), dtype=torch.float32),
            call(aten.prod.dim_int, sample(torch.int32, 5, 5), 1, dtype=torch.float64),
            call(aten.nansum.default, sample(torch.bfloat16, 5, 5), dtype=torch.float32),
        ]
    )


def test_long_sums_of_narrow_floats_do_not_stall() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        ones = torch.ones(4096, dtype=dtype)
        check_calls([call(aten.sum.default, ones), call(aten.mean.default, ones)], rtol=0, atol=0)


def test_a_long_sum_is_as_exact_as_pytorchs() -> None:
    operand = torch.rand(300_000)
    exact = operand.double().sum()
    assert (apply_rule(aten.sum.default, operand).double() - exact).abs() <= 1e-6 * exact


def test_nansum_counts_nan_as_zero() -> None:
    operand = torch.tensor([[1.0, NAN, 3.0], [NAN, NAN, INF]])
    check_calls([call(aten.nansum.default, operand, [1]), call(aten.nansum.default, sample(torch.int32, 3, 3))])


@pytest.mark.parametrize("dtype", REALS)
def test_extrema_agree_in_every_dtype(dtype: torch.dtype) -> None:
    operand = sample(dtype, 4, 5, 3)
    calls = [call(op, operand) for op in (aten.max.default, aten.min.default)]
    calls += [call(op, operand, [0, -1], True) for op in (aten.amax.default, aten.amin.default)]
    for op in (aten.max.dim, aten.min.dim):
        calls += [call(op, operand, 1), call(op, operand, -1, True)]
    calls += [call(aten.aminmax.default, operand), call(aten.aminmax.default, operand, dim=1, keepdim=True)]
    if dtype is not torch.bool:
        for op in (aten.argmax.default, aten.argmin.default):
            calls += [call(op, operand, None, True), call(op, operand), call(op, operand, -2, True)]
    check_calls(calls)


def test_the_first_of_equal_extrema_is_the_one_reported() -> None:
    operand = torch.tensor([[1, 3, 3, 0], [2, 2, 2, 2]])
    ops = (aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default)
    check_calls(call(op, value, 1) for op in ops for value in (operand, operand.float(), operand.double()))


def test_nan_is_both_the_largest_and_the_smallest_element() -> None:
    operand = torch.tensor([[1.0, NAN, INF, NAN], [-INF, 2.0, 0.0, -1.0]])
    calls = []
    for value in (operand, operand.bfloat16(), operand.double()):
        calls += [call(op, value, 1) for op in (aten.max.dim, aten.min.dim)]
        for op in (aten.max.default, aten.min.default, aten.argmax.default, aten.argmin.default, aten.aminmax.default):
            calls.append(call(op, value))
        calls += [call(op, value, [0]) for op in (aten.amax.default, aten.amin.default)]
    check_calls(calls)


@pytest.mark.parametrize("dtype", [*REALS, torch.complex64])
def test_truth_values_agree_in_every_dtype(dtype: torch.dtype) -> None:
    operand = sample(dtype, 3, 4, 2)
    operand[0] = 0
    calls = []
    for op in (aten.any, aten.all):
        calls += [call(op.default, operand), call(op.dim, operand, -1, True)]
        calls += [call(op.dims, operand, dims) for dims in (None, [], [0, 2], [-1])]
    check_calls(calls)


def test_nan_is_true() -> None:
    check_calls([call(aten.any.default, torch.tensor([NAN, 0.0])), call(aten._is_all_true.default, torch.ones(3) > 0)])


def test_logsumexp_agrees_in_every_dtype() -> None:
    dtypes = (torch.float32, torch.float64, torch.int64, *COMPLEX)
    check_calls(call(aten.logsumexp.default, sample(dtype, 4, 5), dims) for dtype in dtypes for dims in ([1], [0, 1]))


def test_logsumexp_of_narrow_floats_is_rounded_once() -> None:
    # PyTorch rounds after every step of it; ours is the rounded exact value.
    for dtype in (torch.bfloat16, torch.float16):
        operand = sample(dtype, 4, 50)
        exact = torch.logsumexp(operand.double(), [1])
        assert torch.equal(apply_rule(aten.logsumexp.default, operand, [1]).to(dtype), exact.to(dtype))


def test_logsumexp_survives_infinities_and_large_numbers() -> None:
    operand = torch.tensor([[INF, 1.0], [-INF, -INF], [1000.0, 1000.0], [NAN, 1.0], [INF, -INF], [-INF, 2.0]])
    check_calls([call(aten.logsumexp.default, operand, [1]), call(aten.logsumexp.default, operand[2:3], [0, 1], True)])


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_variances_agree_for_every_correction(dtype: torch.dtype) -> None:
    operand = sample(dtype, 3, 4, 5)
    ops = (aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction)
    corrections = (None, 0, 2.5, 100)
    calls = [call(op, operand, [1, -1], correction=c, keepdim=True) for op in ops for c in corrections]
    check_calls(calls + [call(op, operand, None, correction=1) for op in ops])


def test_the_variance_of_too_few_elements_is_nan_or_infinite() -> None:
    operands = (torch.tensor([3.0]), torch.tensor(3.0), torch.tensor([1.0, 2.0]), torch.zeros(0))
    corrections = (0, 1, 2, 3)
    check_calls(call(aten.var_mean.correction, x, [], correction=c) for x in operands for c in corrections)


def test_the_variance_of_numbers_far_from_zero_is_exact() -> None:
    check_calls([call(aten.var.correction, sample(torch.float32, 1000) + 1e4, [0])])


def test_the_hash_of_a_tensor_is_pytorchs() -> None:
    operands = (sample(torch.float32, 3, 4), sample(torch.int32, 3, 4) - 5, sample(torch.bool, 3, 4))
    check_calls(call(aten.hash_tensor.default, x, dim) for x in operands for dim in ([], [1]))


def test_the_correction_may_change_from_step_to_step() -> None:
    operand, corrections = torch.randn(3, 4), (0, 2, 0.5, 100)
    operands = (operand, operand.double(), operand.bfloat16(), operand.to(torch.complex64))
    ops = (aten.var_mean.correction, aten.std.correction)
    check_calls((call(op, x, [1], correction=c) for op in ops for x in operands for c in corrections), changing=True)


def test_floats_become_integers_as_elsewhere_before_they_are_summed() -> None:
    """What is negative, or too large, wraps around in a narrow integer and is the least of a wide one."""
    operands = [torch.tensor([[-1.5, 300.0, 2.7, -300.0], [1.0, 4e9, -3.0, NAN]]).to(dtype) for dtype in FLOATS[:3]]
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    ops = (aten.sum.dim_IntList, aten.prod.dim_int, aten.cumsum.default, aten.cumprod.default)
    check_calls(
        call(op, x, [1] if op is aten.sum.dim_IntList else 1, dtype=dtype)
        for op in ops
        for x in operands
        for dtype in integers
    )
