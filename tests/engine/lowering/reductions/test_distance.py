"""Norms and distances agree with PyTorch on the CPU."""

import pytest
import torch

import torch_xla._engine.lowering.reductions.distance  # noqa: F401
from tests.support.rule_table import call, check_calls
from tests.support.rules import apply_rule

aten = torch.ops.aten

NAN, INF = float("nan"), float("inf")
ORDERS = [0, 0.5, 1, 2, 3, 2.5, INF, -INF, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_norms_of_every_order_agree_in_every_dtype(dtype: torch.dtype) -> None:
    operand = torch.randn(3, 4, 5, dtype=torch.promote_types(dtype, torch.float32)).to(dtype)
    calls = []
    for order in ORDERS:
        calls.append(call(aten.linalg_vector_norm.default, operand, order, [0, -1]))
        calls.append(call(aten.linalg_vector_norm.default, operand, order, None, True))
        calls.append(call(aten.norm.ScalarOpt_dim, operand, order, [1], True))
    check_calls([*calls, call(aten.norm.Scalar, operand, 2), call(aten.norm.ScalarOpt_dim, operand, None, [1])])


def test_norms_are_computed_in_a_requested_dtype() -> None:
    operand = torch.randn(4, 5)
    check_calls(
        [
            call(aten.linalg_vector_norm.default, operand.bfloat16(), 2, [1], dtype=torch.float32),
            call(aten.linalg_vector_norm.default, operand, 3, [1], dtype=torch.float64),
            call(aten.linalg_vector_norm.default, operand.to(torch.complex64), 2, [1], dtype=torch.complex128),
            call(aten.norm.ScalarOpt_dtype, operand.bfloat16(), 2, dtype=torch.float32),
            call(aten.norm.ScalarOpt_dim_dtype, operand, 1, [0], False, dtype=torch.float64),
        ]
    )


def test_norms_of_nothing_of_one_number_and_of_nan_agree() -> None:
    operands = (torch.tensor(-3.0), torch.tensor([NAN, 1.0]), torch.tensor([INF, -1.0]), torch.tensor([0.0, 0.0]))
    calls = [call(aten.linalg_vector_norm.default, x, order, []) for x in operands for order in ORDERS]
    calls += [call(aten.linalg_vector_norm.default, torch.zeros(0, 3), order, [0]) for order in (0, 1, 2, 3)]
    check_calls([*calls, call(aten.linalg_vector_norm.default, torch.zeros(3, 0), INF, [0])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_norms_of_nothing_are_0_whatever_the_order(dtype: torch.dtype) -> None:
    nothing = torch.zeros(0, 3, dtype=dtype)
    # Of the first the reciprocal is 0 beside the dtype's numbers, of the last infinite.
    orders = (1e308, 1e39, NAN, 0.5, 1e-320)
    calls = [call(aten.linalg_vector_norm.default, nothing, order, dim) for order in orders for dim in (None, [0])]
    check_calls([*calls, *(call(aten.norm.ScalarOpt_dim, nothing, order, [0], True) for order in orders)])


@pytest.mark.skipif(not hasattr(aten, "linalg__powsum"), reason="newer than this PyTorch")
def test_sums_of_powers_agree() -> None:
    operand = torch.randn(4, 5)
    check_calls(call(aten.linalg__powsum.default, operand, order, [1], True) for order in (0, 1, 2, 3.5))


def test_the_distance_of_two_tensors_promotes_and_broadcasts() -> None:
    left, right = torch.randn(3, 4), torch.randn(4)
    calls = [call(aten.dist.default, left, right, p) for p in (0, 1, 2, 3, INF)]
    check_calls([*calls, call(aten.dist.default, left, right.double()), call(aten.dist.default, left[0], left[0])])


@pytest.mark.parametrize("p", [1, 2, 3.5, INF])
def test_renorm_shortens_only_what_is_too_long(p: float) -> None:
    operand = torch.randn(4, 3, 5) * torch.tensor([0.1, 5.0, 1.0])[:, None]
    check_calls(call(aten.renorm.default, x, p, dim, 2.0) for x in (operand, operand.double()) for dim in (0, 1, -1))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF])
def test_distances_of_all_pairs_and_their_gradients_agree(p: float) -> None:
    left, right = torch.randn(2, 4, 3), torch.randn(2, 5, 3)
    right[:, 0] = left[:, 1]  # a distance of zero
    right[:, 1, 0] = left[:, 2, 0]  # a difference of zero
    distances = aten._cdist_forward(left, right, p, None)
    pairs = aten._pdist_forward(left[0], p)
    check_calls(
        [
            call(aten._cdist_forward.default, left, right, p, None),
            call(aten._cdist_backward.default, torch.randn(2, 4, 5), left, right, p, distances),
            call(aten._pdist_forward.default, left[0], p),
            call(aten._pdist_backward.default, torch.randn(6), left[0], p, pairs),
        ]
    )


def test_distances_without_points_or_dimensions_agree() -> None:
    for left, right in [((0, 3), (4, 3)), ((4, 3), (0, 3)), ((2, 0), (3, 0))]:
        points = torch.zeros(left), torch.zeros(right)
        check_calls(call(aten._cdist_forward.default, *points, p, None) for p in (1.0, 2.0, INF))
    check_calls([call(aten._pdist_forward.default, torch.zeros(rows, 3), 2.0) for rows in (0, 1)])
    check_calls([call(aten._pdist_forward.default, torch.randn(size), 2.0) for size in ((1, 4, 3), (3, 4, 2))])


def test_batches_of_points_are_broadcast() -> None:
    left, right = torch.randn(2, 1, 4, 3), torch.randn(5, 6, 3)
    check_calls([call(aten._cdist_forward.default, left, right, 1.0, None)])


def test_many_points_go_through_a_matrix_product_unless_told_not_to() -> None:
    left, right = torch.randn(30, 8, dtype=torch.float64), torch.randn(40, 8, dtype=torch.float64)
    modes = (None, 0, 1, 2)
    calls = [call(aten._cdist_forward.default, left, right, 2.0, mode) for mode in modes]
    check_calls([*calls, call(aten._euclidean_dist.default, left, right)])
    exact = apply_rule(aten._cdist_forward.default, left, left, 2.0, 2)
    assert (exact.diagonal() == 0).all()


def test_gradients_of_no_distances_have_the_shape_of_the_points() -> None:
    calls = []
    for left, right in [((3, 5), (0, 4, 5)), ((2, 3, 0), (2, 4, 0)), ((2, 1, 3, 5), (4, 4, 5))]:
        points = torch.randn(left), torch.randn(right)
        distances = aten._cdist_forward(*points, 1.0, None)
        calls.append(call(aten._cdist_backward.default, torch.randn(distances.shape), *points, 1.0, distances))
    check_calls(calls)
