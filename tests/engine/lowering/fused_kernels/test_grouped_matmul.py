"""Products of rows with the matrix of their group, against a loop."""

import jax
import numpy as np
import pytest
import torch

from torch_xla._engine.lowering.fused_kernels.grouped_matmul import grouped_outer_product, grouped_product

RANDOM = np.random.default_rng(0)
LHS, RHS = (RANDOM.standard_normal(size, np.float32) for size in ((9, 4), (4, 4, 5)))


def rows_of(sizes: list[int]) -> list[slice]:
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [[3, 0, 4, 2], [0, 0, 9, 0], [1, 2, 0, 1]], ids=str)
def test_rows_times_the_matrix_of_their_group(sizes: list[int], transposed: bool) -> None:
    expected = np.zeros((9, 5), np.float32)
    for group, rows in enumerate(rows_of(sizes)):
        expected[rows] = LHS[rows] @ RHS[group]
    rhs = RHS.swapaxes(1, 2) if transposed else RHS
    found = jax.jit(grouped_product, static_argnums=3)(LHS, rhs, np.array(sizes), transposed)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_matrices_of_some_groups_alone(first: int) -> None:
    sizes = [3, 1, 2, 2]  # one row of no group
    expected = np.zeros((9, 5), np.float32)
    for group in (first, first + 1):
        rows = rows_of(sizes)[group]
        expected[rows] = LHS[rows] @ RHS[group - first]
    at = np.array([first])
    found = jax.jit(grouped_product, static_argnums=3)(LHS, RHS[:2], np.array(sizes), False, at)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    sums = jax.jit(grouped_outer_product, static_argnums=4)(LHS.T, expected, np.array(sizes), at, 2)
    for group in (first, first + 1):
        rows = rows_of(sizes)[group]
        np.testing.assert_allclose(sums[group - first], LHS[rows].T @ expected[rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [[3, 0, 4, 2], [0, 0, 0, 0], [1, 2, 0, 1]], ids=str)
def test_columns_times_rows_by_group(sizes: list[int]) -> None:
    given = RANDOM.standard_normal((9, 5), np.float32)
    found = jax.jit(grouped_outer_product)(LHS.T, given, np.array(sizes))
    assert found.shape == (4, 4, 5)
    for group, rows in enumerate(rows_of(sizes)):
        np.testing.assert_allclose(found[group], LHS[rows].T @ given[rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("transposed", "offset"), [(False, None), (True, 1)])
def test_gradients_and_their_gradients_are_those_of_differences(transposed: bool, offset: int | None) -> None:
    lhs, matrices = (
        torch.from_numpy(each).double().requires_grad_() for each in (LHS[:, :3].copy(), RHS[:2, :3, :2].copy())
    )
    sizes, first = torch.tensor([3, 2, 0, 3]), None if offset is None else torch.tensor([offset])

    def product(rows: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        given = given.mT if transposed else given
        return torch.ops.xla.gmm(rows, given, sizes, None, first, transposed)

    def sums(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return torch.ops.xla.tgmm(rows.t(), others, sizes, None, first, 2)

    others = product(lhs, matrices).detach().requires_grad_()
    for function, operands in ((product, (lhs, matrices)), (sums, (lhs, others))):
        torch.autograd.gradcheck(function, operands)
        torch.autograd.gradgradcheck(function, operands)
