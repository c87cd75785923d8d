"""Factorizations, compared with PyTorch's where they are unique and by their product where they are not."""

import pytest
import torch

from tests.support.rules import apply_rule, check_rule
from tests.support.topologies import forms_of_a_tpu as forms_of_a_tpu

aten = torch.ops.aten
DTYPES = [torch.float32, torch.complex128]
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
SHAPES = [(4, 4), (2, 5, 3), (3, 5)]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(
        dtype
    )


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    root = values(*shape, dtype=dtype)
    return root @ root.mH + torch.eye(shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cholesky_reads_one_triangle(dtype: torch.dtype) -> None:
    A = positive(2, 4, 4, dtype=dtype)
    for upper in (False, True):
        noise = values(2, 4, 4, dtype=dtype)
        half = A.triu() + noise.tril(-1) if upper else A.tril() + noise.triu(1)
        check_rule(aten.linalg_cholesky_ex.default, half, upper=upper, **CLOSE)


def test_cholesky_tells_the_first_minor_that_is_not_positive() -> None:
    matrices = torch.stack([positive(4, 4) for _ in range(5)])
    matrices[1, 0, 0] = -1
    matrices[2, 2, 2] = -5
    matrices[3, 3, 3] = 0
    matrices[4, 1, 1] = torch.nan
    expected = aten.linalg_cholesky_ex.default(matrices)
    L, info = apply_rule(aten.linalg_cholesky_ex.default, matrices)
    assert info.tolist() == expected[1].tolist() == [0, 1, 3, 4, 2]
    torch.testing.assert_close(L[0], expected[0][0])
    with pytest.raises(NotImplementedError):
        apply_rule(aten.linalg_cholesky_ex.default, matrices, check_errors=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lu_of_any_shape(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        A = values(*shape, dtype=dtype)
        check_rule(aten.linalg_lu_factor_ex.default, A, **CLOSE)
        check_rule(aten.linalg_lu.default, A, **CLOSE)
        LU, pivots = torch.linalg.lu_factor(A)
        check_rule(aten.lu_unpack.default, LU.contiguous(), pivots)
    for data, order in ((False, True), (True, False)):
        check_rule(aten.lu_unpack.default, LU.contiguous(), pivots, data, order)
    with pytest.raises(NotImplementedError):
        apply_rule(aten.linalg_lu_factor_ex.default, A, pivot=False)


@pytest.mark.usefixtures("forms_of_a_tpu")
@pytest.mark.parametrize("shape", [*SHAPES, (1, 1), (2, 3, 7, 7)])
def test_lu_of_float64_as_a_tpu_has_it(shape: tuple[int, ...]) -> None:
    A = values(*shape, dtype=torch.float64)
    check_rule(aten.linalg_lu_factor_ex.default, A, rtol=1e-12, atol=1e-12)
    A[..., 0] = 0
    A[..., 0, :] = A[..., 1 % shape[-2], :]  # equal rows, and no pivot in the first column
    check_rule(aten.linalg_lu_factor_ex.default, A, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr_of_any_shape(mode: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        check_rule(aten.linalg_qr.default, values(*shape, dtype=dtype), mode, **CLOSE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_householder_reflections(dtype: torch.dtype) -> None:
    A, tau = torch.geqrf(values(5, 3, dtype=dtype))
    check_rule(aten.linalg_householder_product.default, A.contiguous(), tau, **CLOSE)
    check_rule(aten.linalg_householder_product.default, A.contiguous(), tau[:2], **CLOSE)
    for left in (False, True):
        for transpose in (False, True):
            other = values(5, 2, dtype=dtype) if left else values(2, 5, dtype=dtype)
            check_rule(aten.ormqr.default, A.contiguous(), tau, other, left, transpose, **CLOSE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eigenvalues_of_symmetric_matrices(dtype: torch.dtype) -> None:
    A = positive(2, 4, 4, dtype=dtype)
    for uplo in ("L", "U"):
        half = A.triu() if uplo == "U" else A.tril()
        check_rule(aten._linalg_eigh.default, half, uplo, False, **CLOSE)
        values_, vectors = apply_rule(aten._linalg_eigh.default, half, uplo)
        torch.testing.assert_close(vectors * values_[..., None, :] @ vectors.mH, A, **CLOSE)
        torch.testing.assert_close(vectors.mH @ vectors, torch.eye(4, dtype=dtype).expand(2, 4, 4), **CLOSE)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.complex64], ids=str)
def test_eigenvalues_of_any_square_matrix(dtype: torch.dtype) -> None:
    A = values(2, 4, 4, dtype=dtype)
    found, vectors = apply_rule(aten.linalg_eig.default, A)
    assert found.dtype is vectors.dtype is torch.promote_types(dtype, torch.complex64)
    torch.testing.assert_close(A.to(vectors.dtype) @ vectors, vectors * found[..., None, :], **CLOSE)
    alone = apply_rule(aten._linalg_eigvals.default, A)
    for ours, theirs in zip(alone, torch.linalg.eigvals(A), strict=True):
        assert (ours[:, None] - theirs).abs().amin(0).max() < 1e-4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_singular_values_of_any_shape(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        A = values(*shape, dtype=dtype)
        check_rule(aten._linalg_svd.default, A, False, False, **CLOSE)
        for full in (False, True):
            U, S, Vh = apply_rule(aten._linalg_svd.default, A, full)
            expected = aten._linalg_svd.default(A, full)
            assert [U.shape, S.shape, Vh.shape] == [part.shape for part in expected]
            torch.testing.assert_close(S, expected[1], **CLOSE)
            rank = S.shape[-1]
            product = U[..., :rank] * S[..., None, :].to(dtype) @ Vh[..., :rank, :]
            torch.testing.assert_close(product, A, **CLOSE)
            torch.testing.assert_close(U.mH @ U, torch.eye(U.shape[-1], dtype=dtype).expand_as(U.mH @ U), **CLOSE)


def test_empty_matrices() -> None:
    for shape in ((0, 0), (2, 0, 0), (0, 3, 3)):
        A = torch.zeros(shape)
        check_rule(aten.linalg_cholesky_ex.default, A)
        check_rule(aten._linalg_eigh.default, A)
        check_rule(aten.linalg_eig.default, A)
        check_rule(aten._linalg_eigvals.default, A)
    for shape in ((0, 0), (3, 0), (0, 3), (2, 3, 0), (2, 0, 3), (0, 3, 2)):
        A = torch.zeros(shape)
        check_rule(aten.linalg_lu_factor_ex.default, A)
        check_rule(aten.linalg_lu.default, A)
        for mode in ("reduced", "complete", "r"):
            check_rule(aten.linalg_qr.default, A, mode)
        for full in (False, True):
            check_rule(aten._linalg_svd.default, A, full)
        check_rule(aten._linalg_svd.default, A, False, False)
