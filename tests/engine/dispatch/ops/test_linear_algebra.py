"""Linear algebra as a user calls it: strides, errors, least squares, and what falls to the CPU (nothing)."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from tests.support.topologies import needs_gpu_compiler, needs_tpu_compiler
from tests.support.twins import Program, cases, check_refused, check_same
from torch_xla._engine.dispatch.ops import linear_algebra
from torch_xla._engine.runtime import abstract_devices
from torch_xla.debug import NotComputed, metrics, plan

CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4}


def values(*size: int, d: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(d)


def positive(size: int, d: str) -> torch.Tensor:
    matrix = values(size, size, d="cpu")
    return (matrix @ matrix.mT + torch.eye(size)).to(d)


def least_squares(driver: str, *size: int) -> Program:
    def program(d: str) -> Any:
        return tuple(torch.linalg.lstsq(values(*size, d=d), values(*size[:-1], 2, d=d, seed=1), driver=driver))

    return program


# PyTorch 2.14 has taken it out.
CHOLESKY: dict[str, Program] = {
    "cholesky": lambda d: torch.cholesky(positive(3, d)),
    "cholesky of nothing": lambda d: [
        torch.cholesky(torch.empty(size, device=d)) for size in ((0, 3), (2, 3, 0), (0,))
    ],
    "cholesky, upper": lambda d: torch.cholesky(positive(3, d), upper=True),
    "cholesky, out=": lambda d: torch.cholesky(positive(3, d), out=torch.empty(0, device=d)),
}


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@pytest.mark.filterwarnings("ignore:torch.geqrf")
@cases(
    {
        **({} if torch.__version__ >= (2, 14) else CHOLESKY),
        "checked": lambda d: torch.linalg.inv_ex(positive(3, d), check_errors=True),
        "geqrf": lambda d: torch.geqrf(values(2, 5, 3, d=d)),
        "geqrf of nothing": lambda d: torch.geqrf(values(0, 3, d=d)),
        "singular values": lambda d: [x.abs() for x in torch.linalg.svd(values(5, 3, d=d))],
        "eigenvectors": lambda d: torch.linalg.eig(positive(3, d))[1].abs(),
        **{
            f"least squares, {driver} {size}": least_squares(driver, *size)
            for driver in ("gels", "gelsy", "gelsd", "gelss")
            for size in ((5, 3), (3, 5), (2, 4, 3))
        },
        **{
            f"least squares, a batch of rows, {driver}": lambda d, driver=driver: tuple(
                torch.linalg.lstsq(values(1, 3, 2, d=d), values(3, 3, d=d, seed=1), driver=driver)
            )
            for driver in ("gels", "gelsy", "gelsd", "gelss")
        },
        "least squares, batches of both": lambda d: torch.linalg.lstsq(values(2, 1, 3, 2, d=d), values(1, 3, 3, d=d))[
            0
        ],
        "least squares of a vector": lambda d: tuple(torch.linalg.lstsq(values(2, 4, 3, d=d), values(2, 4, d=d))),
        "least squares, out=": lambda d: torch.linalg.lstsq(
            values(5, 3, d=d),
            values(5, 2, d=d, seed=1),
            out=tuple(
                torch.empty(0, device=d, dtype=dtype)
                for dtype in (torch.float32, torch.float32, torch.int64, torch.float32)
            ),
        ),
    }
)
def test_results_are_those_of_the_cpu_and_native(program: Program) -> None:
    check_same(program, **CLOSE)
    assert set(metrics.executed_fallback_ops()) <= {"aten::_local_scalar_dense"}


@pytest.mark.parametrize("left", [True, False])
def test_solutions_from_the_right_are_conjugated_lazily(left: bool) -> None:
    def program(d: str) -> Any:
        A = torch.complex(values(3, 3, d="cpu"), values(3, 3, d="cpu", seed=1))
        LU, pivots = (x.to(d) for x in torch.linalg.lu_factor(A))
        B = torch.complex(values(3, 3, d="cpu", seed=2), values(3, 3, d="cpu", seed=3)).to(d)
        out = torch.empty(0, dtype=torch.complex64, device=d)
        torch.linalg.lu_solve(LU, pivots, B, left=left, out=out)
        return out, torch.linalg.lu_solve(LU, pivots, B, left=left, adjoint=True), out + 1

    check_same(program, **CLOSE)


def test_residuals_of_a_deficient_rank_are_empty() -> None:
    A = values(5, 2, d="cpu")
    A = torch.cat([A, A], 1)
    check_same(lambda d: tuple(torch.linalg.lstsq(A.to(d), values(5, 2, d=d, seed=1), rcond=1e-3, driver="gelsd")[:3]))


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@cases(
    {
        "cholesky": lambda d: torch.cholesky(-torch.eye(3, device=d)),
        "cholesky_ex": lambda d: torch.linalg.cholesky_ex(-torch.eye(3, device=d), check_errors=True),
        "eig": lambda d: torch.linalg.eig(torch.full((2, 3, 3), torch.nan, device=d)),
        "inv_ex": lambda d: torch.linalg.inv_ex(torch.zeros(2, 3, 3, device=d), check_errors=True),
        "lu_factor_ex": lambda d: torch.linalg.lu_factor_ex(torch.zeros(3, 3, device=d), check_errors=True),
        "solve_ex": lambda d: torch.linalg.solve_ex(
            torch.zeros(3, 3, device=d), torch.ones(3, device=d), check_errors=True
        ),
    }
)
def test_what_cannot_be_factored_is_refused_where_that_is_asked(program: Program) -> None:
    check_refused(program)


def test_eigenvalues_of_what_is_not_finite_are_refused() -> None:
    """On the CPU itself LAPACK ends the process."""
    with pytest.raises(RuntimeError, match="should not contain infs or NaNs"):
        torch.linalg.eigvals(torch.full((3, 3), torch.inf, device="xla"))


@pytest.mark.parametrize("upper", [False, True])
def test_complex_matrices_are_inverted_although_the_cpu_cannot_invert_zeros(upper: bool) -> None:
    def program(d: str) -> Any:
        factor = torch.linalg.cholesky(positive(4, "cpu") + 0.3j * torch.diag(torch.ones(3), 1) + 4 * torch.eye(4))
        return torch.cholesky_inverse((factor.mH if upper else factor).to(d), upper=upper)

    check_same(program, strides=False, **CLOSE)
    assert not metrics.executed_fallback_ops()


def test_batches_of_a_symmetric_solve_are_expanded_for_the_kernel_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's kernel does not broadcast them."""
    taken: list[tuple[int, ...]] = []

    def kernel(*operands: torch.Tensor, hermitian: bool) -> torch.Tensor:
        taken.extend(tuple(each.shape) for each in operands)
        assert all(each.is_contiguous() for each in operands)
        return operands[-1]

    monkeypatch.setattr(linear_algebra, "_ldl_solve", kernel)
    factors, pivots, right = torch.ones(2, 1, 3, 3), torch.ones(2, 1, 3, dtype=torch.int32), torch.ones(5, 3, 1)
    linear_algebra.linalg_ldl_solve(factors, pivots, right)
    assert taken == [(2, 5, 3, 3), (2, 5, 3), (2, 5, 3, 1)]


BATCHES: list[tuple[int, ...]] = [(), (1,), (2,), (4, 2)]


@pytest.mark.parametrize("places", [(0, None), (None, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("left", [True, False])
def test_batches_of_systems_are_aligned_under_vmap(places: tuple[int | None, int | None], left: bool) -> None:
    def solved(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(A, B if left else B.mT, left=left)

    pairs = []
    for batch, other in itertools.product(BATCHES, BATCHES):
        if (batch, other, left) == ((2,), (), False):
            continue  # two right-hand sides for two matrices are vectors, which stand on the right alone
        A = torch.eye(3) * 3 + values(*[5] * (places[0] == 0), *batch, 3, 3, d="cpu") / 4
        B = values(*[5] * (places[1] == 0), *other, 3, 2, d="cpu", seed=1)
        each = [(A[i] if places[0] == 0 else A, B[i] if places[1] == 0 else B) for i in range(5)]
        pairs.append(
            (torch.vmap(solved, places)(A.to("xla"), B.to("xla")), torch.stack([solved(*one) for one in each]))
        )
    for got, wanted in pairs:
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("batch", "right"), [((1,), (1, 4, 3, 2)), ((), (2, 3, 2)), ((2,), (3,)), ((2,), (2, 3))])
def test_jacobians_of_solutions_are_the_same_both_ways(batch: tuple[int, ...], right: tuple[int, ...]) -> None:
    A, B = (torch.eye(3) * 3 + values(*batch, 3, 3, d="cpu") / 4).to("xla"), values(*right, d="xla", seed=1)
    for place in (0, 1):
        forward, reverse = (of(torch.linalg.solve, place)(A, B) for of in (torch.func.jacfwd, torch.func.jacrev))
        torch.testing.assert_close(reverse.cpu(), forward.cpu(), rtol=1e-3, atol=1e-5)


_CHECKED: dict[str, Callable[[torch.Tensor], object]] = {
    "inv": torch.linalg.inv, "cholesky": torch.linalg.cholesky, "torch.cholesky": torch.cholesky,
    "lu_factor": torch.linalg.lu_factor, "solve": lambda A: torch.linalg.solve(A, A[..., :1]),
    "inv_ex": lambda A: torch.linalg.inv_ex(A, check_errors=True), "eig": torch.linalg.eig,
    "eigvals": torch.linalg.eigvals, "lstsq": lambda A: torch.linalg.lstsq(A[..., :1], A[..., :1], driver="gelsd"),
}  # fmt: skip


@pytest.mark.parametrize("read", [nullcontext, abstract_devices.read_as_zeros])
@pytest.mark.parametrize("name", _CHECKED)
def test_a_plan_assumes_that_no_check_finds_a_fault(
    name: str, read: Callable[[], AbstractContextManager[object]]
) -> None:
    matrices = torch.eye(3, device="xla").expand(2, 3, 3) * 2
    with read():
        planned = plan(lambda: _CHECKED[name](matrices), steps=1)
    assert planned.programs


@pytest.mark.parametrize("topology", [
    pytest.param("v5e:1x1", marks=needs_tpu_compiler), pytest.param("h100:1", marks=needs_gpu_compiler),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*not symmetric on a CPU alone")
@pytest.mark.parametrize("find", [torch.linalg.eig, torch.linalg.eigvals])
def test_eigenvalues_for_another_device_are_planned_as_it_has_them(
    find: Callable[[torch.Tensor], object], topology: str
) -> None:
    matrices = torch.eye(3, device="xla") * 2
    with pytest.raises(NotComputed, match="only planned"):
        plan(lambda: find(matrices), topology=topology, steps=1)


@pytest.mark.parametrize("size", [(3, 3), (2, 3, 3), (0, 3, 3)])
def test_errors_of_a_factorization_are_checked_as_on_the_cpu(size: tuple[int, ...]) -> None:
    infos = torch.zeros(size[:-2], dtype=torch.int32)
    torch._linalg_check_errors(infos.to("xla"), "linalg.inv", is_matrix=not infos.dim())
    if infos.numel():
        infos.view(-1)[-1] = 2
        said = []
        for place in ("cpu", "xla"):
            with pytest.raises(torch.linalg.LinAlgError) as error:
                torch._linalg_check_errors(infos.to(place), "linalg.inv", is_matrix=not infos.dim())
            said.append(str(error.value))
        assert said[0] == said[1]
