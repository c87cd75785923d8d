"""Systems of equations, inverses, determinants and functions of matrices, compared with PyTorch on the CPU."""

from typing import Any

import pytest
import torch

from tests.support.rules import apply_rule, check_rule

aten = torch.ops.aten
DTYPES = [torch.float32, torch.complex128]
# Solutions are as good as the condition of the matrix allows, whatever the order of the operations.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(
        dtype
    )


def regular(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A square matrix with a moderate condition."""
    return values(*shape, dtype=dtype) + 3 * torch.eye(shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triangular_systems_from_both_sides(dtype: torch.dtype) -> None:
    A = regular(2, 3, 3, dtype=dtype)
    for upper in (False, True):
        for unit in (False, True):
            op = aten.linalg_solve_triangular.default
            matrix = (A.triu() if upper else A.tril()) / (3 if unit else 1)
            check_rule(op, matrix, values(2, 3, 4, dtype=dtype), upper=upper, unitriangular=unit, **CLOSE)
            check_rule(op, matrix, values(3, 4, dtype=dtype), upper=upper, unitriangular=unit, **CLOSE)
            right = values(2, 4, 3, dtype=dtype)
            check_rule(op, matrix, right, upper=upper, left=False, unitriangular=unit, **CLOSE)


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
def test_the_older_triangular_systems_return_the_matrix_too() -> None:
    for upper in (False, True):
        for transpose in (False, True):
            arguments = values(3, 2), regular(3, 3), upper, transpose, False
            check_rule(aten.triangular_solve.default, *arguments, **CLOSE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cholesky_factors_solve_and_invert(dtype: torch.dtype) -> None:
    root = torch.linalg.cholesky(regular(2, 3, 3, dtype=dtype) @ regular(2, 3, 3, dtype=dtype).mH)
    for upper in (False, True):
        factor = root.mH.contiguous() if upper else root
        check_rule(aten._cholesky_solve_helper.default, values(2, 3, 2, dtype=dtype), factor, upper, **CLOSE)
        check_rule(aten.cholesky_inverse.default, factor[0], upper, **CLOSE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lu_factors_solve_from_both_sides_and_adjoint(dtype: torch.dtype) -> None:
    # The rows are swapped: the diagonal is small.
    A = values(2, 4, 4, dtype=dtype) + 3 * torch.eye(4, dtype=dtype).roll(1, 0)
    LU, pivots = torch.linalg.lu_factor(A)
    for adjoint in (False, True):
        op = aten.linalg_lu_solve.default
        check_rule(op, LU, pivots, values(2, 4, 3, dtype=dtype), adjoint=adjoint, **CLOSE)
        check_rule(op, LU, pivots, values(2, 3, 4, dtype=dtype), left=False, adjoint=adjoint, **CLOSE)
        check_rule(op, LU[:1], pivots[:1], values(5, 4, 3, dtype=dtype), adjoint=adjoint, **CLOSE)


SYSTEMS = [((3, 3), (3,)), ((3, 3), (3, 2)), ((2, 3, 3), (2, 3)), ((2, 3, 3), (2, 3, 4)), ((2, 3, 3), (3, 4))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_systems_of_vectors_and_of_matrices(dtype: torch.dtype) -> None:
    for matrix, right in SYSTEMS:
        check_rule(aten._linalg_solve_ex.default, regular(*matrix, dtype=dtype), values(*right, dtype=dtype), **CLOSE)
    check_rule(
        aten._linalg_solve_ex.default, regular(3, 3, dtype=dtype), values(2, 3, dtype=dtype), left=False, **CLOSE
    )
    check_rule(aten.linalg_inv_ex.default, regular(2, 4, 4, dtype=dtype), **CLOSE)


def test_a_singular_matrix_is_told_by_its_first_zero_pivot() -> None:
    matrices = torch.stack([torch.eye(3), torch.zeros(3, 3), torch.diag(torch.tensor([1.0, 2.0, 0.0]))])
    for op, arguments in ((aten.linalg_inv_ex.default, ()), (aten._linalg_solve_ex.default, (torch.ones(3, 3, 1),))):
        assert apply_rule(op, matrices, *arguments)[-1].tolist() == op(matrices, *arguments)[-1].tolist() == [0, 1, 3]
    with pytest.raises(NotImplementedError, match="an error only on the CPU"):
        apply_rule(aten.linalg_inv_ex.default, matrices, check_errors=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_determinants(dtype: torch.dtype) -> None:
    singular = torch.ones(2, 3, 3, dtype=dtype)
    for A in (values(4, 4, dtype=dtype), values(2, 3, 3, dtype=dtype), -values(1, 1, dtype=dtype), singular):
        check_rule(aten._linalg_det.default, A.contiguous(), **CLOSE)
        check_rule(aten._linalg_slogdet.default, A.contiguous(), **CLOSE)


def test_empty_matrices() -> None:
    for batch in ((), (2,), (0,)):
        for op in (aten._linalg_det.default, aten._linalg_slogdet.default, aten.linalg_matrix_exp.default):
            check_rule(op, torch.zeros(*batch, 0, 0))
        check_rule(aten.linalg_inv_ex.default, torch.zeros(*batch, 0, 0))
        check_rule(aten._linalg_solve_ex.default, torch.zeros(*batch, 0, 0), torch.zeros(*batch, 0, 2))
        check_rule(aten.linalg_pinv.atol_rtol_tensor, torch.zeros(*batch, 0, 3))
    check_rule(aten._linalg_solve_ex.default, regular(3, 3), torch.zeros(3, 0))
    check_rule(aten.linalg_inv_ex.default, torch.zeros(0, 3, 3))


@pytest.mark.parametrize("driver", [None, "gelsy", "gels"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_least_squares(driver: str | None, dtype: torch.dtype) -> None:
    for rows, columns in ((5, 3), (3, 5), (3, 3)):
        right = values(rows, 2, dtype=dtype)
        check_rule(aten.linalg_lstsq.default, values(rows, columns, dtype=dtype), right, driver=driver, **CLOSE)
    batch = values(2, 5, 3, dtype=dtype)
    check_rule(aten.linalg_lstsq.default, batch, values(2, 5, 2, dtype=dtype), driver=driver, **CLOSE)
    check_rule(aten.linalg_lstsq.default, batch, values(2, 5, dtype=dtype), driver=driver, **CLOSE)


def test_least_squares_of_a_deficient_rank_gives_the_shortest_solution() -> None:
    A = values(6, 2, dtype=torch.float64) @ values(2, 4, dtype=torch.float64)
    check_rule(aten.linalg_lstsq.default, A, values(6, 3, dtype=torch.float64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pseudo_inverses_drop_small_singular_values(dtype: torch.dtype) -> None:
    A = values(2, 4, 3, dtype=dtype)
    real = A.real.dtype
    tolerances: list[dict[str, Any]] = [
        {},
        {"atol": torch.tensor(1.5, dtype=real)},
        {"rtol": torch.tensor([0.1, 0.9], dtype=real)},
        {"atol": torch.tensor(0.0, dtype=real), "rtol": torch.tensor(0.5, dtype=real)},
    ]
    op = aten.linalg_pinv.atol_rtol_tensor
    symmetric = A.mH @ A
    for tolerance in tolerances:
        torch.testing.assert_close(apply_rule(op, A, **tolerance), op(A, **tolerance), **CLOSE)
        expected = op(symmetric, hermitian=True, **tolerance)
        torch.testing.assert_close(apply_rule(op, symmetric, hermitian=True, **tolerance), expected, **CLOSE)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.complex64], ids=str)
def test_exponentials_of_matrices_of_any_norm(dtype: torch.dtype) -> None:
    A = values(5, 4, 4, dtype=dtype) * torch.tensor([0.0, 1e-3, 0.3, 2.0, 9.0])[:, None, None].to(dtype)
    expected = torch.linalg.matrix_exp(A.to(torch.complex128 if dtype.is_complex else torch.float64))
    got = apply_rule(aten.linalg_matrix_exp.default, A)
    assert got.dtype is dtype
    scale = expected.abs().amax((-2, -1), keepdim=True)
    tolerance = 1e-5 if dtype in (torch.float32, torch.complex64) else 1e-13
    assert ((got - expected).abs() / scale).max() < tolerance
    check_rule(aten.linalg_matrix_exp.default, values(3, 3, dtype=dtype), **CLOSE)


def test_linear_combinations_of_matrices() -> None:
    check_rule(aten._compute_linear_combination.default, values(3, 2, 4), values(5, 3))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64], ids=str)
def test_cross_products_along_any_dimension(dtype: torch.dtype) -> None:
    a, b = values(2, 3, 4), values(1, 3, 4)
    a, b = ((t * 10).to(dtype) for t in (a, b))
    check_rule(aten.linalg_cross.default, a, b, dim=1)
    check_rule(aten.linalg_cross.default, a.mT.contiguous(), b.mT.contiguous())


def test_the_exponential_of_a_large_matrix_keeps_its_digits() -> None:
    A = 4 * values(3, 5, 5)
    exact = torch.linalg.matrix_exp(A.double())
    ours, theirs = apply_rule(aten.linalg_matrix_exp.default, A), torch.linalg.matrix_exp(A)
    assert (ours - exact).abs().max() <= 4 * (theirs - exact).abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_exponentials_of_narrow_matrices_are_exact_to_a_digit(dtype: torch.dtype) -> None:
    # PyTorch's CPU gives -20896 and NaN here (`findings/matrix_exp_of_half_precision.sh`).
    A = (torch.eye(2) * torch.tensor([1.0, 0.01, 3.0])[:, None, None]).to(dtype)
    A = torch.cat([A, torch.tensor([[[0.0, 1.0], [-2.0, 0.0]]], dtype=dtype)])
    expected = torch.linalg.matrix_exp(A.double())
    got = torch.linalg.matrix_exp(A.to("xla")).cpu()
    assert got.dtype is dtype
    error = (got - expected).abs().amax((-2, -1)) / expected.abs().amax((-2, -1))
    assert error.max() <= torch.finfo(dtype).eps
