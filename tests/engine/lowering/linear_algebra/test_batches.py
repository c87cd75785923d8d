"""Batch dimensions that broadcast, in all of `torch.linalg`: as where each argument is expanded by hand.

The reference is never the call itself on the CPU, whose kernels are not right for each of these.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, vmap

from tests.support.ways_to_run import WAYS, made_to_run

L = torch.linalg
Tensors = tuple[torch.Tensor, ...]
# A call, its arguments, and how many of the dimensions of each are those of one matrix, vector or number.
Case = tuple[str, Callable[..., Any], Tensors, tuple[int, ...]]

BATCHES = [
    ((5, 1), (5, 9)),
    ((9,), (5, 9)),
    ((5, 9), (9,)),
    ((4, 1), (3,)),
    ((), (3,)),
    ((3,), ()),
    ((1,), (0,)),
    ((2, 1), (1, 0)),
    ((1, 4), (3, 1)),
]


QUIET = pytest.mark.filterwarnings(
    "ignore:.*has no XLA lowering here",
    "ignore:torch.*_solve is deprecated",
    "ignore:An output with one or more elements was resized",
)


class Operands:
    """Random matrices that are far from singular, and what is made of them."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._coins = torch.Generator().manual_seed(0)

    def any(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self._coins, dtype=self.dtype)

    def square(self, *batch: int) -> torch.Tensor:
        # The last row is the largest, so that rows change places.
        return (self.any(*batch, 3, 3) + 3 * torch.eye(3, dtype=self.dtype)).flip(-2)

    def positive(self, *batch: int) -> torch.Tensor:
        matrix = self.square(*batch)
        return matrix @ matrix.mH + torch.eye(3, dtype=self.dtype)


def systems(make: Operands, one: tuple[int, ...], other: tuple[int, ...]) -> Iterator[Case]:
    LU, pivots = L.lu_factor(make.square(*one))
    A, triangle = make.square(*one), make.square(*one)
    for left in (True, False):
        B = make.any(*other, 3, 2) if left else make.any(*other, 2, 3)
        for adjoint in (True, False):

            def by_factors(
                a: torch.Tensor, p: torch.Tensor, b: torch.Tensor, left: Any = left, of: Any = adjoint
            ) -> Any:
                return L.lu_solve(a, p, b, left=left, adjoint=of)

            yield f"lu_solve {left=} {adjoint=}", by_factors, (LU, pivots, B), (2, 1, 2)
        yield f"solve {left=}", lambda a, b, left=left: L.solve(a, b, left=left), (A, B), (2, 2)
        yield f"solve_ex {left=}", lambda a, b, left=left: L.solve_ex(a, b, left=left), (A, B), (2, 2)
        for upper in (True, False):
            for unit in (True, False):

                def triangular(a: torch.Tensor, b: torch.Tensor, o: Any = (upper, left, unit)) -> Any:
                    return L.solve_triangular(a, b, upper=o[0], left=o[1], unitriangular=o[2])

                yield f"solve_triangular {upper=} {left=} {unit=}", triangular, (triangle, B), (2, 2)
    right = make.any(*other, 3, 2)
    for upper in (True, False):
        for transpose in (True, False):

            def older(b: torch.Tensor, a: torch.Tensor, o: Any = (upper, transpose)) -> Any:
                return torch.triangular_solve(b, a, *o)

            yield f"triangular_solve {upper=} {transpose=}", older, (right, triangle), (2, 2)
        factor = L.cholesky(make.positive(*one), upper=upper)
        yield f"cholesky_solve {upper=}", lambda b, c, up=upper: torch.cholesky_solve(b, c, up), (right, factor), (2, 2)
    yield "torch.lu_solve", torch.lu_solve, (right, LU, pivots), (2, 2, 1)
    for hermitian in (True, False):
        LD, swaps = L.ldl_factor(make.positive(*one), hermitian=hermitian)

        def by_ldl(a: torch.Tensor, p: torch.Tensor, b: torch.Tensor, hermitian: bool = hermitian) -> Any:
            return L.ldl_solve(a, p, b, hermitian=hermitian)

        # Batches are equal here; `tests/engine/dispatch/ops/test_linear_algebra.py` sees that others are expanded.
        yield f"ldl_solve {hermitian=}", by_ldl, (LD, swaps, make.any(*one, 3, 2)), (2, 1, 2)
    yield "solve of vectors", L.solve, (A, make.any(*one, 3)), (2, 1)
    yield "solve of one vector", lambda a, b: L.solve(a, b), (A, make.any(3)), (2, 1)


def others(make: Operands, one: tuple[int, ...], other: tuple[int, ...]) -> Iterator[Case]:
    yield "vecdot", L.vecdot, (make.any(*one, 3), make.any(*other, 3)), (1, 1)
    yield "matmul", L.matmul, (make.any(*one, 3, 2), make.any(*other, 2, 4)), (2, 2)
    if len(one) == len(other):  # it asks for that
        yield "cross", L.cross, (make.any(*one, 3), make.any(*other, 3)), (1, 1)
        rows, columns = make.any(*one, 4, 3), make.any(*other, 4, 2)
        if 0 not in (*one, *other):
            yield "lstsq", lambda a, b: L.lstsq(a, b).solution, (rows, columns), (2, 2)
    matrix, tolerance = make.any(*one, 4, 3), make.any(*other).real.abs() / 10
    yield "pinv atol", lambda a, t: L.pinv(a, atol=t), (matrix, tolerance), (2, 0)
    yield "pinv rtol", lambda a, t: L.pinv(a, rtol=t), (matrix, tolerance), (2, 0)
    yield "pinv hermitian", lambda a, t: L.pinv(a, rtol=t, hermitian=True), (make.positive(*one), tolerance), (2, 0)
    yield "matrix_rank", lambda a, t: L.matrix_rank(a, atol=t), (matrix, tolerance), (2, 0)
    yield "lu_unpack", lambda a, p: torch.lu_unpack(a, p), tuple(L.lu_factor(make.square(*one))), (2, 1)
    reflectors, factors = torch.geqrf(make.any(*one, 4, 3))
    yield "householder_product", L.householder_product, (reflectors, factors), (2, 1)
    for left in (True, False):
        C = make.any(*one, 4, 2) if left else make.any(*one, 2, 4)
        yield f"ormqr {left=}", lambda *a, left=left: torch.ormqr(*a, left, True), (reflectors, factors, C), (2, 1, 2)
    for name in ("inv", "det", "slogdet", "matrix_exp", "svdvals", "matrix_norm"):
        yield name, getattr(L, name), (make.square(*one),), (2,)


def expanded(tensor: torch.Tensor, batch: tuple[int, ...], core: int) -> torch.Tensor:
    return tensor.expand(*batch, *tensor.shape[tensor.dim() - core :]).contiguous()


def differences(
    cases: list[Case], given: Callable[[torch.Tensor, tuple[int, ...], int], torch.Tensor], way: str
) -> list[str]:
    """Return the differences from the reference for arguments made by `given`, with all calls in one function."""
    arguments = []
    for _, _, operands, cores in cases:
        batch = torch.broadcast_shapes(*(x.shape[: x.dim() - core] for x, core in zip(operands, cores, strict=True)))
        arguments.append([given(x.to("xla"), batch, core) for x, core in zip(operands, cores, strict=True)])

    def step(arguments: list[list[torch.Tensor]]) -> list[Any]:
        return [call(*each) for (_, call, _, _), each in zip(cases, arguments, strict=True)]

    with made_to_run(way, step) as run:
        results = run(arguments)
    found = []
    for (name, call, operands, cores), result in zip(cases, results, strict=True):
        batch = torch.broadcast_shapes(*(x.shape[: x.dim() - core] for x, core in zip(operands, cores, strict=True)))
        reference = call(*(expanded(x, batch, core) for x, core in zip(operands, cores, strict=True)))
        leaves = (torch.utils._pytree.tree_leaves(each) for each in (result, reference))
        for place, (ours, theirs) in enumerate(zip(*leaves, strict=True)):
            # There are as many factors as matrices; an empty batch does not determine them.
            if ours.shape != theirs.shape and not theirs.numel():
                continue
            theirs = theirs if ours.dim() == theirs.dim() and ours.shape == theirs.shape else _first(theirs, ours.shape)
            try:
                torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-7, atol=1e-8)
            except AssertionError as error:
                found.append(f"{name}, result {place} of {[tuple(x.shape) for x in operands]}: {error}")
    return found


def _first(tensor: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """The part of `tensor` that has this size: the first along each dimension in which it was expanded."""
    tensor = tensor[(0,) * (tensor.dim() - len(size))]
    for dim, count in enumerate(size):
        tensor = tensor.narrow(dim, 0, count)
    return tensor


def as_it_is(tensor: torch.Tensor, batch: tuple[int, ...], core: int) -> torch.Tensor:
    return tensor


def without_strides(tensor: torch.Tensor, batch: tuple[int, ...], core: int) -> torch.Tensor:
    """Expanded, so that a step along the batch is a step of no elements."""
    return tensor.expand(*batch, *tensor.shape[tensor.dim() - core :])


def all_cases(dtype: torch.dtype, one: tuple[int, ...], other: tuple[int, ...]) -> list[Case]:
    make = Operands(dtype)
    return [*systems(make, one, other), *others(make, one, other)]


@QUIET
@pytest.mark.parametrize(
    ("one", "other"), [BATCHES[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in BATCHES[1:])]
)
@pytest.mark.parametrize("given", [as_it_is, without_strides])
def test_batches_broadcast_as_if_each_argument_was_expanded(
    one: tuple[int, ...], other: tuple[int, ...], given: Any
) -> None:
    assert not differences(all_cases(torch.float64, one, other), given, "recorded")


@pytest.mark.slow
@QUIET
@pytest.mark.parametrize(("one", "other"), [BATCHES[0], BATCHES[-1]])
def test_batches_of_complex_matrices_broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert not differences(all_cases(torch.complex128, one, other), as_it_is, "recorded")


@pytest.mark.slow
@QUIET
@pytest.mark.parametrize("way", WAYS[1:])
def test_batches_broadcast_in_every_way_of_running(way: str) -> None:
    assert not differences(all_cases(torch.float64, (5, 1), (5, 9)), as_it_is, way)


RIGHT = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "det": L.det,
    "slogdet": lambda a: L.slogdet(a).logabsdet,
    "logdet": torch.logdet,
    "inv": L.inv,
    "solve": lambda a: L.solve(a, RIGHT.to(a.device)),
    "solve from the right": lambda a: L.solve(a, RIGHT.mT.to(a.device), left=False),
    "cholesky": L.cholesky,
    "lu_solve": lambda a: L.lu_solve(*L.lu_factor(a), RIGHT.to(a.device)),
    "lu_solve, adjoint": lambda a: L.lu_solve(*L.lu_factor(a), RIGHT.to(a.device), adjoint=True),
    "lu_solve from the right": lambda a: L.lu_solve(*L.lu_factor(a), RIGHT.mT.to(a.device), left=False),
    "solve_triangular": lambda a: L.solve_triangular(a, RIGHT.to(a.device), upper=True),
    "cholesky_solve": lambda a: torch.cholesky_solve(RIGHT.to(a.device), a),
    "pinv": L.pinv,
    "matrix_exp": L.matrix_exp,
}
SOON = ("det", "solve")


@pytest.mark.parametrize("derivative", [jacfwd, hessian, pytest.param(jacrev, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [name if name in SOON else pytest.param(name, marks=pytest.mark.slow) for name in FUNCTIONS]
)
def test_derivatives_under_vmap_are_those_of_each_matrix(name: str, derivative: Any) -> None:
    function, matrices = FUNCTIONS[name], Operands(torch.float64).positive(5)
    expected = torch.stack([derivative(function)(matrix) for matrix in matrices])
    found = vmap(derivative(function))(matrices.to("xla")).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("sizes", [((4, 3), (3, 4, 2)), ((3, 4, 3), (4, 2))])
def test_shapes_that_least_squares_does_not_take_are_refused_as_on_the_cpu(sizes: Any) -> None:
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError, match="input.dim\\(\\) must be greater|size of tensor a \\(3\\)"):
            L.lstsq(*(torch.ones(size, device=device) for size in sizes))
