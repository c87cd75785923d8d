"""Linear algebra that raises for singular matrices, or whose result sizes depend on values."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...compat.names import torch as private
from ...errors import NotComputed
from ...runtime import abstract_devices
from ...tensor.storage import value_of
from .. import cpu_fallback
from ..call_planning import type_name
from ..checks import cpu_errors
from ..op_schema import operator_of
from ..out_variants import fill_out
from ..recording_kernel import Kernel, recorder

aten = torch.ops.aten

_det = recorder("aten::_linalg_det")
_slogdet = recorder("aten::_linalg_slogdet")
_cholesky = recorder("aten::linalg_cholesky_ex")
_lu_solve = recorder("aten::linalg_lu_solve")
_least_squares = recorder("aten::linalg_lstsq")
_ldl_solve = recorder("aten::linalg_ldl_solve")


def _transposed_if_backward_thinks_so(matrix: Tensor) -> Tensor:
    # PyTorch's backward takes the factors for those of the transpose exactly if A is contiguous and real.
    return matrix if matrix.is_contiguous() or matrix.is_complex() else matrix.mT


def linalg_det(A: Tensor) -> tuple[torch.Tensor, ...]:
    """Return the determinant, with the factors that its backward expects."""
    return _det(_transposed_if_backward_thinks_so(A))


def linalg_slogdet(A: Tensor) -> tuple[torch.Tensor, ...]:
    """Sign and logarithm of the determinant, with the factors that their backward expects."""
    return _slogdet(_transposed_if_backward_thinks_so(A))


def _found(fault: Tensor) -> bool:
    """Read from the device whether any element is true. A plan, which computes nothing, assumes that none is."""
    try:
        return bool(fault.any())
    except NotComputed:
        if not abstract_devices.active:
            raise
        return False


def check_errors(infos: Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Implement `torch._linalg_check_errors`: raise if a factorization failed, after reading one number for that."""
    if _found(infos):
        aten._linalg_check_errors(infos.cpu(), api_name, is_matrix=is_matrix)


def _checking(name: str, called: str) -> Kernel:
    """Return the kernel of a factorization whose last result shows failures; with `check_errors` they raise."""
    record = recorder(f"aten::{name}")

    def kernel(self: Tensor, *args: object, check_errors: bool = False, **kwargs: object) -> tuple[torch.Tensor, ...]:
        results = record(self, *args, **kwargs)
        if check_errors:
            aten._linalg_check_errors(results[-1], called, is_matrix=self.dim() == 2)
        return results

    return kernel


def cholesky(self: Tensor, upper: bool = False) -> Tensor:
    """Implement `torch.cholesky`, the older form, which raises."""
    if not self.numel():
        return torch.empty_like(self, memory_format=torch.contiguous_format)  # of any dtype and size
    if self.dim() < 2 or self.shape[-1] != self.shape[-2]:
        cpu_errors.refuse_if_the_cpu_does(operator_of("aten::cholesky"), (self, upper), {})
    if not (self.is_floating_point() or self.is_complex()):
        raise NotImplementedError(f"\"cholesky_cpu\" not implemented for '{type_name(self.dtype)}'")
    factor: Tensor
    factor, info = _cholesky(self, upper=upper)
    aten._linalg_check_errors(info, "cholesky", is_matrix=self.dim() == 2)
    return factor


def _check_finite(matrices: Tensor) -> None:
    """Raise PyTorch's error, on every device; read one number for that."""
    if matrices.numel() and _found(~matrices.isfinite()):
        raise RuntimeError("torch.linalg.eig: input tensor should not contain infs or NaNs.")


def _finding_eigenvalues(name: str) -> Kernel:
    """Return the kernel that finds eigenvalues of finite matrices; LAPACK does not survive others.

    XLA has them on a CPU only. A plan for another device does as that device would: PyTorch's CPU kernel.
    """
    record, operator = recorder(f"aten::{name}"), operator_of(f"aten::{name}")

    def kernel(self: Tensor) -> object:
        _check_finite(self)
        return record(self) if value_of(self).device.target.is_host else cpu_fallback.run(operator, (self,), {})

    return kernel


_DRIVERS = (None, "gels", "gelsy", "gelsd", "gelss")


def linalg_lstsq(self: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Implement `torch.linalg.lstsq`. Residuals are given only where every matrix has full rank, which must be read."""
    # It takes fewer shapes than `solve` does.
    if driver not in _DRIVERS or (self.dim() != b.dim() and self.shape[:-1] != b.shape):
        cpu_errors.refuse_if_the_cpu_does(operator_of("aten::linalg_lstsq"), (self, b, rcond), {"driver": driver})
    if b.dim() == self.dim() - 1 and self.shape[:-1] != b.shape:
        # The first sizes of `b` are its batch, even where they are its rows as well.
        batch = torch.broadcast_shapes(self.shape[:-2], b.shape[: self.dim() - 2])
        b = b.expand(*batch, *b.shape[-2:])
    solution, residuals, rank, values = _least_squares(self, b, rcond, driver=driver)
    rows, columns = self.shape[-2:]
    if driver in ("gelsd", "gelss") and rows > columns and _found(rank != columns):
        residuals = residuals.new_empty(0)
    return _within_right_sides(solution, max(rows, columns), solution.dim() < self.dim()), residuals, rank, values


def _within_right_sides(solution: Tensor, length: int, is_vector: bool) -> Tensor:
    """Return `solution`, where LAPACK leaves it: column by column, in the memory of the right-hand sides."""
    size = [*solution.shape, 1] if is_vector else list(solution.shape)
    whole = solution.new_empty((*size[:-2], size[-1], length)).mT
    place = whole.narrow(-2, 0, size[-2])
    return (place.squeeze(-1) if is_vector else place).copy_(solution)


def linalg_lstsq_out(*args: Any, driver: str | None = None, **outs: Tensor) -> object:
    """Do as `linalg_lstsq`, into the given tensors."""
    targets = tuple(outs[name] for name in ("solution", "residuals", "rank", "singular_values"))
    for target, result in zip(targets, linalg_lstsq(*args, driver=driver), strict=True):
        if target.numel() or result.dtype is not target.dtype:
            fill_out(target, result)
        else:
            target.set_(result)
    return targets


def linalg_lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """Implement `torch.linalg.lu_solve`. From the right PyTorch solves for the adjoint, and shows its conjugate
    lazily.
    """
    result: Tensor = _lu_solve(LU, pivots, B, left=left, adjoint=adjoint)
    return result if left or not B.is_complex() or not result.numel() else result.conj_physical().conj()


def linalg_lu_solve_out(*args: Any, out: Tensor, left: bool = True, adjoint: bool = False) -> Tensor:
    """Do as `linalg_lu_solve`, into `out`."""
    result = linalg_lu_solve(*args, left=left, adjoint=adjoint)
    if result.is_conj() and not out.is_conj():
        fill_out(out, result.conj())
        private.mark_conjugate(out)
    else:
        fill_out(out, result)
    return out


def linalg_ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """Implement `torch.linalg.ldl_solve`. The CPU's kernel does not broadcast batches, so they are expanded here."""
    try:
        batch = torch.broadcast_shapes(LD.shape[:-2], B.shape[:-2])
    except RuntimeError:
        batch = None
    if batch is None or LD.dim() < 2 or B.dim() < 2 or pivots.shape != LD.shape[:-1]:
        # PyTorch has words of its own for it.
        return _ldl_solve(LD, pivots, B, hermitian=hermitian)  # type: ignore[no-any-return]
    expanded = (
        LD.expand(*batch, *LD.shape[-2:]),
        pivots.expand(*batch, *pivots.shape[-1:]),
        B.expand(*batch, *B.shape[-2:]),
    )
    return _ldl_solve(*(each.contiguous() for each in expanded), hermitian=hermitian)  # type: ignore[no-any-return]


def linalg_ldl_solve_out(*args: Any, out: Tensor, hermitian: bool = False) -> Tensor:
    """Do as `linalg_ldl_solve`, into `out`."""
    fill_out(out, linalg_ldl_solve(*args, hermitian=hermitian))
    return out


_solve = aten._linalg_solve_ex.default


def _solving_aligned(rule: Kernel) -> Kernel:
    """Return a batching rule that gives both operands of `_linalg_solve_ex` as many dimensions before it calls `rule`.

    PyTorch's own aligns the batch of `vmap` with another one where the operands have different numbers of dimensions.
    """

    def solve(
        keys: object, A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False
    ) -> tuple[Tensor, ...]:
        is_vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B.shape == A.shape[:-1])
        more = B.dim() + is_vector - A.dim()
        is_refused = min(A.dim(), B.dim() + is_vector) < 2 or (is_vector and not left)
        if A.device.type != "xla" or B.dim() == A.dim() or is_refused:
            return rule(keys, A, B, left=left, check_errors=check_errors)  # type: ignore[no-any-return]
        columns = B.unsqueeze(-1) if is_vector else B
        # Of a negative number of dimensions, Python makes none.
        result, *factors = _solve(A[(None,) * more], columns[(None,) * -more], left=left, check_errors=check_errors)
        return result.squeeze(-1) if is_vector else result, *(each[(0,) * more] for each in factors)

    return solve


def register_batching() -> torch.library.Library:
    """Replace the batching rule of PyTorch's that is wrong; the returned library keeps ours in force."""
    library = private.raw_library("aten")
    private.replace_batching_rule(library, "_linalg_solve_ex", _solving_aligned)
    return library


KERNELS: dict[str, Callable[..., object]] = {
    "_linalg_check_errors": check_errors,
    "_linalg_det": linalg_det,
    "_linalg_slogdet": linalg_slogdet,
    "cholesky": cholesky,
    "linalg_eig": _finding_eigenvalues("linalg_eig"),
    "_linalg_eigvals": _finding_eigenvalues("_linalg_eigvals"),
    "linalg_lstsq": linalg_lstsq,
    "linalg_lstsq.out": linalg_lstsq_out,
    "linalg_ldl_solve": linalg_ldl_solve,
    "linalg_ldl_solve.out": linalg_ldl_solve_out,
    "linalg_lu_solve": linalg_lu_solve,
    "linalg_lu_solve.out": linalg_lu_solve_out,
    "linalg_cholesky_ex": _checking("linalg_cholesky_ex", "linalg.cholesky_ex"),
    "linalg_lu_factor_ex": _checking("linalg_lu_factor_ex", "torch.linalg.lu_factor_ex"),
    "linalg_inv_ex": _checking("linalg_inv_ex", "linalg.inv_ex"),
    "_linalg_solve_ex": _checking("_linalg_solve_ex", "torch.linalg.solve_ex"),
}
