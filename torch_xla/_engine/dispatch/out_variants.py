"""Resize and fill the tensors given as `out=`, as PyTorch does.

An interrupt finds all of them with their results, or all as they were: what they are to show is recorded on the side.
"""

import warnings
from collections.abc import Callable, Sequence
from itertools import chain, starmap
from typing import Any

import torch
from torch import Tensor

from ..atomic import run_through, stores
from ..compat.names.torch import address_of, pytree
from ..tensor.device import LOCK
from ..tensor.storage import META_KEYS, as_strided, value_of, wrap
from . import call_planning
from .checks.cpu_dtypes import refuse_outs
from .op_schema import Operator, operator_of

# Written in C.
_set_data = Tensor.data.__set__  # type: ignore[attr-defined]


def fill_out(out: Tensor, result: Tensor, warns: bool = True) -> None:
    """Write `result` to `out`, and resize it as PyTorch does."""
    fill_all((out,), (result,), warns, callers=5)


def fill_all(outs: Sequence[Tensor], results: Sequence[Tensor], warns: bool = True, callers: int = 4) -> None:
    """Call `fill_out` for each of the `outs` and its result. Several of them may be views of one storage.

    `callers` is how many frames up the user's line is, which a warning names.
    """
    for out, result in zip(outs, results, strict=True):
        if out.device != result.device:
            raise RuntimeError(
                f"Expected out tensor to have device {result.device}, but got {out.device} instead. "
                f"Move it with `.to({str(result.device)!r})`."
            )
        if out.shape != result.shape and out.numel() and warns:
            warnings.warn(call_planning.RESIZE_WARNING.format(list(out.shape), list(result.shape)), stacklevel=callers)
    if len(outs) == 1 and outs[0].shape == results[0].shape:
        outs[0].copy_(results[0])
        return
    while not _fill(outs, results):  # another thread has written to one of them meanwhile
        pass


# Operators that resize an `out=` without a warning.
_RESIZES_QUIETLY = frozenset(
    f"aten::{name}"
    for name in ("addbmm.out", "bernoulli.out", "eye.m_out", "eye.out", "log_sigmoid_forward.output", "multinomial.out",
                 "narrow_copy.out")
)  # fmt: skip
# Operators that give matrices column by column, but to an `out=` with elements that they resize, which is row by row.
_RESIZES_TO_ROWS = frozenset(
    f"aten::{name}"
    for name in ("cholesky_inverse.out", "geqrf.a", "linalg_eig.out", "linalg_householder_product.out",
                 "linalg_lstsq.out", "orgqr.out", "ormqr.out")
)  # fmt: skip


def fill_of(name: str, outs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Write the results of an operator to its `out=`, and resize these as it does."""
    if name in _RESIZES_TO_ROWS:
        pairs = zip(outs, results, strict=True)
        results = [r.contiguous() if out.numel() and out.shape != r.shape else r for out, r in pairs]
    fill_all(outs, results, name not in _RESIZES_QUIETLY, callers=5)


def refusing_dtypes(name: str, kernel: Callable[..., object]) -> Callable[..., object]:
    """Return `kernel`, a hand-written `out=` form, with a check that the CPU accepts the dtypes of `out=`."""
    operator: Operator | None = None
    taken: set[tuple[torch.dtype, ...]] = set()

    def kernel_of_some(*args: object, **kwargs: object) -> object:
        nonlocal operator
        found = tuple(leaf.dtype for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        if found not in taken:
            operator = operator or operator_of(name)
            if len(set(found)) > 1:
                refuse_outs(operator, args, kwargs)
            taken.add(found)
        return kernel(*args, **kwargs)

    return kernel_of_some


def _fill(outs: Sequence[Tensor], results: Sequence[Tensor]) -> bool:
    """Return whether the `outs` still had their first values, and have their results now."""
    storages: dict[int, Any] = {}
    before: dict[int, Any] = {}
    copies: dict[int, Any] = {}
    resized: list[tuple[Tensor, Tensor]] = []
    for out, result in zip(outs, results, strict=True):
        storage, size, offset = out.untyped_storage(), result.shape, out.storage_offset()
        place = address_of(storage)
        if place not in storages:
            storages[place], before[place] = storage, value_of(out)
            copies[place] = wrap(before[place]).untyped_storage()
        copy = _showing(copies[place], out)
        if out.shape != size:
            copy.resize_(size).as_strided_(size, result.stride(), offset)
            resized.append((out, as_strided(META_KEYS, out, size, result.stride(), offset)))
        copy.copy_(result)
    values = [copy.value for copy in copies.values()]
    with LOCK:
        if any([storage.value is not before[place] for place, storage in storages.items()]):
            return False
        run_through(chain(starmap(_set_data, resized), stores(storages.values(), "value", values)))
    return True


def _showing(storage: Any, out: Tensor) -> Tensor:
    """Return a tensor that shows `storage` as `out` shows its own."""
    shown = torch.empty(0, dtype=out.dtype, device=out.device)
    shown.set_(storage, out.storage_offset(), out.shape, out.stride())
    if out.dtype.is_complex and out.is_conj():
        shown = torch._conj(shown)
    return torch._neg_view(shown) if out.is_neg() else shown
