"""Matrix products, compared with PyTorch on the CPU."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from tests.support.rules import apply_rule, check_rule
from tests.support.signed_zeros import check_signs
from tests.support.topologies import forms_of_a_tpu as forms_of_a_tpu
from tests.support.topologies import needs_tpu_compiler
from tests.support.ways_to_run import WAYS, made_to_run
from torch_xla._engine.lowering.linear_algebra import matmul
from torch_xla._engine.lowering.machinery.replica_axis import lowering_for
from torch_xla._engine.runtime import abstract_devices, device_assignment
from torch_xla._engine.runtime.platform import local_devices

aten = torch.ops.aten
NARROW = [torch.bfloat16, torch.float16]
FLOATS = [torch.float32, torch.float64, torch.complex64]
INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) * 31 + len(shape))
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -7, 8, shape, generator=generator).to(dtype)


def check(op: Any, *operands: Any, **options: Any) -> None:
    """As `check_rule`, without a compilation for every case."""
    tolerance = {name: options.pop(name, None) for name in ("rtol", "atol")}
    expected = op(*operands, **options)
    ours = apply_rule(op, *operands, jit=False, **options)
    torch.testing.assert_close(ours.to(expected.dtype), expected, equal_nan=True, **tolerance)


PRODUCTS: list[tuple[Any, tuple[tuple[int, ...], ...]]] = [
    (aten.mm.default, ((3, 4), (4, 5))),
    (aten.mm.default, ((3, 0), (0, 5))),
    (aten.mm.default, ((0, 4), (4, 5))),
    (aten.bmm.default, ((2, 3, 4), (2, 4, 5))),
    (aten.bmm.default, ((0, 3, 4), (0, 4, 5))),
    (aten.mv.default, ((3, 4), (4,))),
    (aten.mv.default, ((3, 0), (0,))),
    (aten.dot.default, ((6,), (6,))),
    (aten.dot.default, ((0,), (0,))),
    (aten.vdot.default, ((6,), (6,))),
    (aten.addmm.default, ((3, 5), (3, 4), (4, 5))),
    (aten.addmm.default, ((5,), (3, 4), (4, 5))),
    (aten.addmm.default, ((), (3, 4), (4, 5))),
    (aten.addmm.default, ((3, 1), (3, 0), (0, 5))),
    (aten.addmv.default, ((3,), (3, 4), (4,))),
    (aten.addmv.default, ((), (3, 4), (4,))),
    (aten.baddbmm.default, ((2, 3, 5), (2, 3, 4), (2, 4, 5))),
    (aten.baddbmm.default, ((5,), (2, 3, 4), (2, 4, 5))),
    (aten.addbmm.default, ((3, 5), (2, 3, 4), (2, 4, 5))),
    (aten.addr.default, ((3, 5), (3,), (5,))),
    (aten.addr.default, ((), (3,), (5,))),
]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_products_match_for_every_dtype(dtype: torch.dtype) -> None:
    for op, shapes in PRODUCTS:
        check(op, *(values(*shape, dtype=dtype) for shape in shapes))


def check_as_near_to_the_truth(op: Any, *operands: torch.Tensor, **numbers: float) -> None:
    """PyTorch rounds a narrow sum once or several times, by kernel: ours may not be farther from the float64 result."""
    truth = op(*(operand.double() for operand in operands), **numbers)
    theirs = op(*operands, **numbers)
    ours = apply_rule(op, *operands, **numbers, jit=False).to(theirs.dtype)
    allowed = (theirs - truth).abs() + torch.finfo(theirs.dtype).eps / 2 * truth.abs() + 1e-6
    assert ((ours - truth).abs() <= allowed).all(), op


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_products_are_as_near_to_the_truth_as_those_of_pytorch(dtype: torch.dtype) -> None:
    for op, shapes in PRODUCTS:
        operands = [values(*shape, dtype=dtype) for shape in shapes]
        check_as_near_to_the_truth(op, *operands)
        if len(shapes) == 3:
            check_as_near_to_the_truth(op, *operands, beta=-0.5, alpha=3)


SUMS = [(op, shapes) for op, shapes in PRODUCTS if len(shapes) == 3]


@pytest.mark.parametrize(("beta", "alpha"), [(0, 1), (0.0, 2.5), (1, -3), (-0.5, 1), (2.7, 0.3)])
def test_sums_of_products_scale_both_terms(beta: float, alpha: float) -> None:
    for op, shapes in SUMS:
        for dtype in FLOATS:
            operands = [values(*shape, dtype=dtype) for shape in shapes]
            check(op, *operands, beta=beta, alpha=alpha)


def test_numbers_are_truncated_for_integer_products() -> None:
    operands = [values(3, 3, dtype=torch.int64) for _ in range(3)]
    check(aten.addmm.default, *operands, beta=2.9, alpha=-1.5)


def test_a_beta_of_zero_drops_the_summand_even_where_it_is_nan() -> None:
    for op, shapes in SUMS:
        nan = torch.full(shapes[0], torch.nan)
        check(op, nan, *(values(*shape) for shape in shapes[1:]), beta=0)


@pytest.mark.parametrize("alpha", [torch.inf, torch.nan])
def test_an_infinite_factor_of_no_products_is_left_out(alpha: float) -> None:
    shapes: dict[Any, tuple[tuple[int, ...], ...]] = {
        aten.addmm.default: ((3, 5), (3, 0), (0, 5)),
        aten.addmv.default: ((3,), (3, 0), (0,)),
        aten.baddbmm.default: ((2, 3, 5), (2, 3, 0), (2, 0, 5)),
        aten.addbmm.default: ((3, 5), (0, 3, 4), (0, 4, 5)),
    }
    for op, sizes in shapes.items():
        for beta in (0, 1, 2.5):
            check(op, *(values(*size) for size in sizes), beta=beta, alpha=alpha)


def test_a_beta_that_is_zero_only_at_run_time_drops_the_summand_too() -> None:
    @jax.jit
    def run(beta: jax.Array) -> jax.Array:
        ones = jnp.ones((2, 2), jnp.float32)
        return matmul.addmm(ones * jnp.nan, ones, ones, beta=beta, alpha=beta + 1)

    assert (run(0.0) == 2).all()
    assert run(0.0).dtype == np.float32
    assert jnp.isnan(run(1.0)).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_beta_of_zero_leaves_the_signs_of_the_product(way: str) -> None:
    # The CPU's own kernels differ in the sign of a product of 0 and -1.
    left, right = torch.tensor([[1.0], [-1.0]], device="xla"), torch.zeros(1, 2, device="xla")
    calls = {
        torch.addmm: (torch.mm, (left, right)),
        torch.addmv: (torch.mv, (left, right[:, 0])),
        torch.addbmm: (lambda *factors: torch.bmm(*factors).sum(0), (left[None], right[None])),
        torch.baddbmm: (torch.bmm, (left[None], right[None])),
        torch.addr: (torch.outer, (left[:, 0], right[0])),
    }
    for op, (product, factors) in calls.items():
        for zero in (0.0, -0.0):

            def function(*factors: torch.Tensor, beta: float, op: Any = op, zero: float = zero) -> torch.Tensor:
                return op(torch.full((2,) if op is torch.addmv else (2, 2), zero, device="xla"), *factors, beta=beta)

            with made_to_run(way, function) as run:
                # A number becomes an argument of the program when it changes.
                made = [run(*factors, beta=beta).cpu() for beta in (0.0, 0.5, 0.0, 0, -0.0)]
            for each in (made[0], *made[2:]):
                assert torch.equal(each.signbit(), product(*factors).signbit().cpu()), f"{op.__name__} to {zero}"


@pytest.mark.parametrize("way", WAYS)
def test_one_term_is_added_with_its_sign(way: str) -> None:
    """-0 and a product that is -0 are -0. The reference is IEEE's: the CPU's kernels depend on the processor."""
    bias, left, right = torch.tensor([-0.0, 0.0, -0.0]), torch.tensor([[-0.0], [0.0]]), torch.tensor([[1.0, 2.0, -1.0]])
    calls = [
        lambda bias, left, right, beta: torch.addmm(bias, left, right, beta=beta),
        lambda bias, left, right, beta: torch.addbmm(bias.expand(2, 3), left[None], right[None], beta=beta),
        lambda bias, left, right, beta: torch.addmv(bias, right.T, left[0], beta=beta).expand(2, 3),
        lambda bias, left, right, beta: torch.nn.functional.linear(left, right.T, bias * beta),
        lambda bias, left, right, beta: torch.nn.functional.linear(left[None], right.T, bias * beta)[0],
    ]

    def function(*operands: torch.Tensor, beta: float) -> torch.Tensor:
        return torch.stack([call(*operands, beta) for call in calls])

    expected = (bias + left * right).expand(len(calls), 2, 3).clone()
    expected[2] = bias + right.T[:, 0] * left[0]
    with made_to_run(way, function) as run:
        for beta in (1.0, 2.0, 3.0, 1.0):
            made = run(*(each.to("xla") for each in (bias, left, right)), beta=beta).cpu()
            assert torch.equal(made.signbit(), expected.signbit()), f"beta {beta}"


@pytest.mark.parametrize("way", WAYS)
def test_products_of_one_term_have_the_signs_of_the_cpu(way: str) -> None:
    """A product of matrices is the term with its sign, one with a vector is added to 0."""

    def function(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
        column, row, linear = left[:, :1], right[:1], torch.nn.functional.linear
        products = [column @ row, column @ row[:, :1], column[:1] @ row, column @ row[0, :1], column[0] @ row]
        products += [torch.bmm(column[None], row[None]), linear(column, row.T), linear(column[0], row.T, bias)]
        flat = left[:1], right[:, :1]
        return [*products, flat[0] @ flat[1], left @ right]

    check_signs(way, function, torch.full((2, 3), -0.0), torch.ones(3, 4), torch.full((4,), -0.0))


@pytest.mark.parametrize("way", ["recorded", "eager"])  # the others do not call autograd
@pytest.mark.parametrize("size", [(3,), (1,), (1, 3), (1, 1, 3), (2, 3), (2, 1)])
def test_gradients_of_a_linear_layer_have_the_signs_of_the_cpu(way: str, size: tuple[int, ...]) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
        x, weight = x.requires_grad_(), weight.requires_grad_()
        return list(torch.autograd.grad(torch.nn.functional.linear(x, weight), (x, weight), grad))

    check_signs(way, function, torch.ones(size), torch.ones(4, size[-1]), torch.full((*size[:-1], 4), -0.0))


@pytest.mark.parametrize("way", WAYS)
def test_a_bilinear_layer_is_added_to_zeros(way: str) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.bilinear(x, x, weight), torch.nn.functional.bilinear(x[0], x[0], weight)]

    check_signs(way, function, torch.tensor([[-0.0], [1.0]]), torch.full((2, 1, 1), -0.0))


def test_addr_promotes_its_tensors() -> None:
    mixed = [
        (values(3, 2), values(3, dtype=torch.float64), values(2, dtype=torch.int32)),
        (torch.tensor(1.5, dtype=torch.float64), values(3), values(2)),
        (values(3, 2, dtype=torch.int64), values(3, dtype=torch.bfloat16), values(2, dtype=torch.int64)),
    ]
    for operands in mixed:
        check(aten.addr.default, *operands)
        check(aten.addr.default, *operands, beta=0.5, alpha=2)


def test_addr_of_bools_is_logical() -> None:
    self = torch.tensor([[True, False], [False, False]])
    one, other = torch.tensor([True, False]), torch.tensor([False, True])
    for numbers in ({}, {"beta": False}, {"alpha": False}, {"beta": -1, "alpha": 1}):
        check(aten.addr.default, self, one, other, **numbers)


def test_half_precision_sums_are_rounded_once() -> None:
    # 4096 ones beside a 1/16: a bfloat16 sum would stop at 256.
    ones = torch.ones(1, 4096, dtype=torch.bfloat16)
    check_rule(aten.mm.default, ones, ones.t(), rtol=0, atol=0)
    check_rule(aten.linear.default, ones, ones, torch.full((1,), 0.0625, dtype=torch.bfloat16), rtol=0, atol=0)


MATMULS = [
    ((4,), (4,)),
    ((3, 4), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
    ((2, 6, 3, 4), (2, 6, 4, 5)),
    ((0, 3, 4), (4, 5)),
    ((2, 3, 0), (0, 5)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64], ids=str)
def test_matmul_broadcasts_batches_and_takes_vectors(dtype: torch.dtype) -> None:
    for left, right in MATMULS:
        check(aten.matmul.default, values(*left, dtype=dtype), values(*right, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.complex128, marks=pytest.mark.slow)], ids=str)
def test_matmul_backward_gives_the_gradients_of_autograd(dtype: torch.dtype) -> None:
    for left, right in MATMULS:
        a = values(*left, dtype=dtype).requires_grad_()
        b = values(*right, dtype=dtype).requires_grad_()
        result = torch.matmul(a, b)
        grad = values(*result.shape, dtype=dtype)
        expected = torch.autograd.grad(result, (a, b), grad)
        got = apply_rule(aten.matmul_backward.default, grad, a, b, [True, True], jit=False)
        for ours, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        first, second = apply_rule(aten.matmul_backward.default, grad, a, b, [True, False], jit=False)
        assert first is not None and second is None


LINEARS: list[tuple[tuple[int, ...], ...]] = [
    ((2, 4), (5, 4), (5,)),
    ((2, 3, 4), (5, 4), (5,)),
    ((4,), (5, 4), (5,)),
    ((2, 4), (4,)),
    ((4,), (4,)),
    ((0, 4), (5, 4), (5,)),
    ((2, 0), (5, 0), (5,)),
]


@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW, torch.int64], ids=str)
def test_linear_takes_any_number_of_leading_dimensions(dtype: torch.dtype) -> None:
    for shapes in LINEARS:
        operands = [values(*shape, dtype=dtype) for shape in shapes]
        check(aten.linear.default, *operands)
        check(aten.linear.default, *operands[:2])


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, *(pytest.param(d, marks=pytest.mark.slow) for d in (torch.complex128, torch.bfloat16))],
    ids=str,
)
def test_linear_backward_gives_the_gradients_of_autograd(dtype: torch.dtype) -> None:
    for shapes in LINEARS:
        operands = [values(*shape, dtype=dtype).requires_grad_() for shape in shapes]
        input, weight = operands[:2]
        result = torch.nn.functional.linear(*operands)
        grad = values(*result.shape, dtype=dtype)
        expected = torch.autograd.grad(result, operands, grad)
        mask = [True, True, len(operands) == 3]
        got = apply_rule(aten.linear_backward.default, input, grad, weight, mask, jit=False)
        for ours, theirs in zip(got, expected, strict=False):
            torch.testing.assert_close(ours.to(dtype), theirs)
        assert apply_rule(aten.linear_backward.default, input, grad, weight, [False] * 3, jit=False) == (None,) * 3


ROWS = [(aten.linear.default, (1, 48)), (aten.linear.default, (48,)), (aten.linear.default, (1, 1, 48))]


def test_one_row_of_bfloat16_is_as_near_to_the_truth_as_that_of_pytorch() -> None:
    for op, shape in ROWS:
        check_as_near_to_the_truth(op, values(*shape, dtype=torch.bfloat16), values(64, 48, dtype=torch.bfloat16))
    for shapes in (((1, 48), (48, 64)), ((64, 48), (48, 1)), ((1, 48), (48, 1))):
        check_as_near_to_the_truth(aten.mm.default, *(values(*shape, dtype=torch.bfloat16) for shape in shapes))
    check_as_near_to_the_truth(aten.mv.default, values(64, 48, dtype=torch.bfloat16), values(48, dtype=torch.bfloat16))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="what XLA:CPU does with bfloat16")
def test_bfloat16_is_not_converted_in_memory_on_a_cpu() -> None:
    def program_of(function: Any, *shapes: tuple[int, ...]) -> str:
        operands = [jnp.ones(shape, jnp.bfloat16) for shape in shapes]
        # The operands are computed by another operation, as in a model.
        computed = jax.jit(lambda *args: function(*(arg * 2 for arg in args)).astype(jnp.bfloat16))
        return str(computed.lower(*operands).compile().as_text())

    if "ynn_fusion" not in program_of(matmul.linear, (8, 48), (64, 48)):
        pytest.skip("this processor has no instructions for bfloat16, and XLA converts all of it")
    for rule, shapes in (
        (matmul.linear, ((1, 48), (64, 48))),
        (matmul.linear, ((1, 1, 48), (64, 48))),
        (matmul.product, ((48,), (48, 64))),
        (matmul.product, ((64, 48), (48,))),
        (lambda input, grad: matmul.contract(grad, input, ((0, 1), (0, 1))), ((2, 16, 48), (2, 16, 64))),
    ):
        text = program_of(rule, *shapes)
        *_, entry = text.split("ENTRY ")
        converted = [line for line in entry.splitlines() if "f32[64,48]" in line.split(" = ")[-1].split("(")[0]]
        assert "ynn_fusion" in entry, shapes
        assert all("ynn_fusion" in line for line in converted), (shapes, entry)


@pytest.mark.parametrize("use_gelu", [False, True])
def test_addmm_activation_uses_the_exact_gelu(use_gelu: bool) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        operands = values(5, dtype=dtype), values(3, 4, dtype=dtype), values(4, 5, dtype=dtype)
        # PyTorch rounds the sum to bfloat16 before the activation, we only after it: one unit in the last place.
        tolerance = {"rtol": 1.6e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
        check(aten._addmm_activation.default, *operands, use_gelu=use_gelu, beta=0.5, **tolerance)


def test_the_dtype_overloads_keep_the_accumulated_precision() -> None:
    a, b = values(3, 64, dtype=torch.bfloat16), values(64, 5, dtype=torch.bfloat16)
    expected = a.float() @ b.float()
    torch.testing.assert_close(apply_rule(aten.mm.dtype, a, b, torch.float32), expected)
    torch.testing.assert_close(apply_rule(aten.bmm.dtype, a[None], b[None], torch.float32), expected[None])
    added = apply_rule(aten.addmm.dtype, expected, a, b, torch.float32, alpha=2)
    torch.testing.assert_close(added, 3 * expected)
    added = apply_rule(aten.baddbmm.dtype, expected[None], a[None], b[None], torch.float32, beta=2)
    torch.testing.assert_close(added, 3 * expected[None])


def test_a_wide_product_of_bfloat16_may_be_transposed() -> None:
    a, b = values(16, 64, dtype=torch.bfloat16), values(64, 24, dtype=torch.bfloat16)
    expected = (a.float() @ b.float()).t().contiguous()
    left, right = a.to("xla"), b.to("xla")
    torch.testing.assert_close(torch.mm(left, right, out_dtype=torch.float32).t().contiguous().cpu(), expected)
    added = torch.addmm(expected.t().to("xla"), left, right, out_dtype=torch.float32, beta=0).t().contiguous()
    torch.testing.assert_close(added.cpu(), expected)


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_of_products_is_added_in_the_dtype_asked_for(way: str) -> None:
    added, a, b = values(2, 3, 5), values(2, 3, 4, dtype=torch.bfloat16), values(2, 4, 5, dtype=torch.bfloat16)
    expected = torch.baddbmm(added, a.float(), b.float(), beta=2.0, alpha=0.5)
    with made_to_run(way, lambda *x: torch.baddbmm(*x, out_dtype=torch.float32, beta=2.0, alpha=0.5)) as function:
        for _ in range(2):
            torch.testing.assert_close(function(added.to("xla"), a.to("xla"), b.to("xla")).cpu(), expected)


def test_trilinear_sums_over_any_dimensions() -> None:
    # The case of `nn.Bilinear`, and one with dimensions of size 1 and a sum over none.
    check(aten._trilinear.default, values(2, 3), values(4, 3, 5), values(2, 5), [1, 3], [0], [1, 2], [2, 3])
    check(aten._trilinear.default, values(2, 1), values(4, 3, 5), values(2, 5), [1, 3], [0], [1, 2], [2])
    check(aten._trilinear.default, values(2, 3), values(2, 3), values(2, 3), [], [], [], [])
    check(aten._trilinear.default, values(2), values(3), values(4), [1, 2], [0, 2], [0, 1], [-1])


def test_integer_products_do_not_overflow_eight_bits() -> None:
    a = torch.full((32, 64), 127, dtype=torch.int8)
    # PyTorch's own sums stop at 16 bits on processors without AVX-512's instructions for it.
    expected = (a.long() @ a.t().long()).int()
    torch.testing.assert_close(apply_rule(aten._int_mm.default, a, a.t().contiguous()), expected, rtol=0, atol=0)
    scales = values(8).abs()
    weight = values(8, 16, dtype=torch.int8)
    check(aten._weight_int8pack_mm.default, values(4, 16), weight, scales)


def test_scaled_products_take_scales_of_matrices_and_of_rows() -> None:
    if torch.__version__.startswith("2.11"):
        pytest.skip("the CPU of PyTorch 2.11 takes no scales of rows: there is nothing to compare with")
    a, b = (values(16, 32).to(torch.float8_e4m3fn) for _ in range(2))
    tensorwise = torch.tensor(2.0), torch.tensor(0.25)
    rowwise = values(16, 1).abs(), values(1, 16).abs()
    for out_dtype in (torch.float32, torch.bfloat16):
        for scales in (tensorwise, rowwise):
            check_rule(aten._scaled_mm.default, a, b.t(), *scales, out_dtype=out_dtype)
    scaled = {"scale_result": torch.tensor(4.0), "out_dtype": torch.float8_e4m3fn}
    expected = aten._scaled_mm.default(a, b.t(), *tensorwise, **scaled)
    got = apply_rule(aten._scaled_mm.default, a, b.t(), *tensorwise, **scaled)
    # PyTorch rounds to another dtype in between, so a tie may fall to the neighbour: one unit in the last place.
    torch.testing.assert_close(got.to(torch.float8_e4m3fn).float(), expected.float(), rtol=0.125, atol=0)


@pytest.mark.parametrize("transposed", ["neither", "left", "right", "both"])
@pytest.mark.parametrize("size", [(8, 8, 8), (64, 8, 64), (3, 64, 8)], ids=str)
def test_a_batch_of_one_product_of_bfloat16_reads_its_operands_as_they_lie(
    size: tuple[int, int, int], transposed: str
) -> None:
    rows, inner, columns = size

    def stored(first: int, second: int, other_way: bool) -> torch.Tensor:
        matrix = values(*((second, first) if other_way else (first, second)), dtype=torch.bfloat16)
        return matrix.t() if other_way else matrix

    left = stored(rows, inner, transposed in ("left", "both"))
    right = stored(inner, columns, transposed in ("right", "both"))
    moved = [matrix.t().to("xla").t() if not matrix.is_contiguous() else matrix.to("xla") for matrix in (left, right)]
    for product in (
        lambda a, b: torch.bmm(a[None], b[None]),
        lambda a, b: torch.einsum("mk,kn->nm", a, b),
        lambda a, b: torch.matmul(a[None, None], b[None, None]),
    ):
        got, expected = product(*moved).cpu(), product(left, right)
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


@pytest.mark.parametrize("beta", [0, 1, 2])
def test_what_is_added_does_not_enlarge_a_product(beta: int) -> None:
    x = torch.ones(1, 3, device="xla")
    with pytest.raises(RuntimeError, match="must match the existing size"):
        torch.addmm(x, x, x.mT, beta=beta)
    with pytest.raises(RuntimeError, match="size mismatch"):
        torch.addmv(x[0], x, x[0], beta=beta)


@pytest.mark.usefixtures("forms_of_a_tpu")
def test_products_of_64_bit_integers_on_a_tpu() -> None:
    large = torch.randint(-(2**62), 2**62, (2, 3, 4, 5), generator=torch.Generator().manual_seed(0))
    left, right = large[0], large[1].transpose(1, 2)
    check_rule(aten.mm.default, left[0], right[0])
    check_rule(aten.bmm.default, left, right)
    check_rule(aten.mv.default, left[0], right[0, :, 0])
    check_rule(aten.dot.default, left[0, 0], right[0, :, 0])
    check_rule(aten._trilinear.default, left[0], right[0].T, left[1, 0], [1], [0], [0, 1], [2])


@pytest.mark.parametrize(("platform", "is_spread", "sent"), [
    ("tpu", True, jnp.bfloat16), ("gpu", True, jnp.bfloat16), ("cpu", True, jnp.float32), ("tpu", False, jnp.float32),
])  # fmt: skip
def test_devices_send_parts_of_a_narrow_layer_in_its_dtype(platform: str, is_spread: bool, sent: Any) -> None:
    """PyTorch's tensor parallelism does so; where one device computes alone, a sum is rounded once."""
    devices = abstract_devices.virtual_devices(4)
    target = device_assignment.of_mesh(devices) if is_spread else device_assignment.of_device(local_devices()[0])
    x, weight, bias = (jnp.ones(size, jnp.bfloat16) for size in ((2, 3, 4), (5, 4), (5,)))
    with lowering_for(dataclasses.replace(target, platform=platform)):
        # Each is a function of its own: JAX would give the program of an earlier target for the same one.
        alone, with_bias = (jax.make_jaxpr(partial(matmul.linear))(x, weight, *more) for more in ((), (bias,)))
    for program in (alone, with_bias):
        (product,) = (each for each in program.eqns if each.primitive.name == "dot_general")
        assert product.outvars[0].aval.dtype == sent
    assert alone.out_avals[0].dtype == sent and with_bias.out_avals[0].dtype == jnp.float32


@needs_tpu_compiler
def test_a_tpu_multiplies_64_bit_integers_without_their_products_in_memory() -> None:
    left = torch.ones(128, 128, dtype=torch.int64, device="xla")
    torch_xla.sync()
    program = torch_xla.debug.plan(lambda: left @ left, topology="v5e:1x1", steps=1).programs[0]
    assert program.sizes.intermediate < 128**3
