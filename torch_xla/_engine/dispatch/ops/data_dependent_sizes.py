"""Operators whose result sizes depend on values: `nonzero`, `unique`, masked selection and others.

The device counts, the host waits for that one number, and the result is computed on the device at its size. The wait
is a read of a scalar, counted as `aten::_local_scalar_dense`, with the user's line.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ...caching.interning import table_of_plans
from ...ir.call_plan import Operand, Plan
from ...ir.value_spec import Spec, spec_of
from ...lowering.indexing.sorting import ORDER_OF_ROWS
from ...tensor.host_known_values import Asked, known_numbers
from ...tensor.storage import shows_all, snapshot, value_of, wrap
from ..checks import index_checks
from ..checks.cpu_dtypes import refuse_without_kernel
from ..checks.cpu_errors import refuse_partial_overlap
from ..op_schema import operator_of
from ..out_variants import fill_out
from ..recording_kernel import append, recorder

Parts = tuple[Tensor, Tensor, Tensor]

_static_places = recorder("aten::nonzero_static")
_repeat_interleave = recorder("aten::repeat_interleave.Tensor")

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}

_order_plans: dict[Spec, Plan] = {}
table_of_plans(_order_plans)


def _count(truths: Tensor) -> int:
    return int(truths.sum().item())


def nonzero(self: Tensor) -> Tensor:
    """Implement `torch.nonzero`: the indices of the nonzero elements, one a row, stored column by column."""
    refuse_without_kernel("aten::nonzero", self)
    truths = self if self.dtype is torch.bool else self != 0
    places: Tensor = _static_places(truths, size=_count(truths))
    return places.t().contiguous().as_strided(places.shape, (1, len(places)))


def nonzero_out(self: Tensor, *, out: Tensor) -> Tensor:
    """Implement `torch.nonzero(x, out=...)`."""
    refuse_without_kernel("aten::nonzero", self)
    if out.dtype is not torch.int64:
        raise RuntimeError(f"nonzero: expected out tensor to have scalar type Long but got {out.dtype}")
    if out.device != self.device:
        raise RuntimeError(
            f"nonzero: expected self and out to be on the same device, but got out on {out.device} and self on "
            f"{self.device}. Move it with `.to({str(self.device)!r})`."
        )
    refuse_partial_overlap(operator_of("aten::nonzero.out"), [out], (self,), {"out": out})
    fill_out(out, nonzero(self))
    return out


def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    """Implement `torch.masked_select`: the elements where `mask` is true, in their order."""
    if mask.dtype is not torch.bool:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, got {mask.dtype}; write `mask != 0`.")
    self, mask = torch.broadcast_tensors(self, mask)
    return _at_places(self.reshape(-1), mask.reshape(-1))


def masked_select_out(self: Tensor, mask: Tensor, *, out: Tensor) -> Tensor:
    """Implement `torch.masked_select(x, mask, out=...)`."""
    if out.dtype is not self.dtype:
        raise RuntimeError(f"masked_select(): self and result must have the same scalar type, not {out.dtype}")
    refuse_partial_overlap(operator_of("aten::masked_select.out"), [out], (self, mask), {"out": out})
    fill_out(out, masked_select(self, mask))
    return out


def _at_places(rows: Tensor, chosen: Tensor) -> Tensor:
    """Return the rows where the vector `chosen` is true."""
    places = _static_places(chosen, size=_count(chosen))
    return rows.index_select(0, places.reshape(-1))


def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """Implement `torch.repeat_interleave` of positions: each place as often as `repeats` says.

    With `output_size` the device is not waited for, and what the host knows of `repeats` is all that is looked at.
    """
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int64, torch.int32):
        raise NotImplementedError(f'"repeat_interleave" not implemented for {repeats.dtype}: it takes int64 and int32')
    if output_size is not None and output_size < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {output_size}: [{output_size}]")
    known = known_numbers(repeats, Asked.DECIDES) if shows_all(repeats, value_of(repeats).spec) else None
    if output_size is None or known is not None:
        least, total = _least_and_sum(repeats, known)
        if least < 0:
            raise RuntimeError(f"repeats can not be negative; the least is {least}")
        if output_size is not None and output_size != total:
            raise RuntimeError(f"allocated size does not match required size: {output_size} and {total}")
        output_size = total
    result: Tensor = _repeat_interleave(repeats, output_size=output_size)
    return result


def _least_and_sum(numbers: Tensor, known: np.ndarray | None) -> tuple[int, int]:
    if not numbers.numel():
        return 0, 0
    if known is not None:
        return int(known.min()), int(known.sum(dtype=np.int64))
    least, total = torch.stack((numbers.amin().long(), numbers.sum())).tolist()
    return least, total


def _runs(starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the starts, the run of each place, and the lengths, given a vector that is true where a run starts."""
    places = _static_places(starts, size=_count(starts)).reshape(-1)
    ends = torch.cat([places[1:], places.new_full((1,), starts.numel())]) if places.numel() else places
    return places, starts.cumsum(0) - 1, ends - places


def _starts(rows: Tensor) -> Tensor:
    """Return where a row of a matrix, or an element of a vector, differs from the previous one."""
    differs = rows[1:] != rows[:-1]
    if differs.dim() > 1:
        differs = differs.any(1)
    return torch.cat([torch.ones_like(differs[:1]) if differs.numel() else rows.new_ones(1, dtype=torch.bool), differs])


def _distinct(values: Tensor, order: Tensor | None, counts: bool, inverse: bool) -> Parts:
    """Return the distinct rows of `values`, in which equal rows are adjacent. `order` is each row's original place."""
    nothing = torch.empty(0, dtype=torch.int64, device=values.device)
    if not values.shape[0]:
        return values.clone(), nothing, nothing
    places, run, lengths = _runs(_starts(values))
    if inverse and order is not None:
        run = torch.empty_like(run).scatter_(0, order, run)
    return _rows(values, places), run if inverse else nothing, lengths if counts else nothing


def _rows(values: Tensor, places: Tensor) -> Tensor:
    """Return rows of `values`. `index_select` takes no unsigned numbers wider than 8 bits, and moves their bits."""
    signed = _SIGNED.get(values.dtype)
    if signed is None:
        return values.index_select(0, places)
    return values.view(signed).index_select(0, places).view(values.dtype)


def unique2(self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Parts:
    """Implement `torch.unique` of all elements, in ascending order."""
    refuse_without_kernel("aten::_unique2", self)
    values, order = self.reshape(-1).sort(stable=True)
    distinct, inverse, counts = _distinct(values, order, return_counts, return_inverse)
    return distinct, inverse.view(self.shape) if return_inverse else inverse, counts


def unique(self: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    """Implement `torch._unique`, an older form."""
    return unique2(self, sorted, return_inverse)[:2]


def _as_rows(self: Tensor, dim: int) -> Tensor:
    moved = self.movedim(dim, 0)
    if not self.numel():
        if self.shape[dim]:
            raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
        return moved.reshape(0, 1)
    return moved.reshape(moved.shape[0], -1)


def _as_slices(rows: Tensor, self: Tensor, dim: int) -> Tensor:
    moved = self.movedim(dim, 0)
    return rows.reshape(rows.shape[0], *moved.shape[1:]).movedim(0, dim)


def _order_of_rows(rows: Tensor) -> Tensor:
    """Return the stable order of the rows, compared element by element from the first on."""
    value = snapshot(rows)
    plan = _order_plans.get(value.spec)
    if plan is None:
        order = spec_of((rows.shape[0],), (1,), torch.int64)
        plan = _order_plans[value.spec] = Plan(ORDER_OF_ROWS, ((Operand(0),), {}), (value.spec,), (), (order,))
    return wrap(append(plan, ([], [value], []), value.device)[0])


def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Parts:
    """Implement `torch.unique(dim=...)`: distinct slices in ascending order."""
    refuse_without_kernel("aten::unique_dim", self, dim)
    rows = _as_rows(self, dim)
    order = _order_of_rows(rows)
    # The CPU returns all three, whatever is asked for.
    distinct, inverse, counts = _distinct(_rows(rows, order), order, True, True)
    return _as_slices(distinct, self, dim), inverse, counts


def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Parts:
    """Implement `torch.unique_consecutive`: the first of each run of equal elements, or of equal slices."""
    refuse_without_kernel("aten::unique_consecutive", self, False, False, dim)
    if dim is not None:
        distinct, inverse, counts = _distinct(_as_rows(self, dim), None, True, True)
        return _as_slices(distinct, self, dim), inverse, counts
    distinct, inverse, counts = _distinct(self.reshape(-1), None, return_counts, return_inverse)
    return distinct, inverse.view(self.shape) if return_inverse else inverse, counts


def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Implement `torch.bincount`: how often each number up to the greatest occurs, or the sum of its weights."""
    _refuse_uncountable(self, weights, minlength)
    if not self.numel():
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    least, most = torch.stack(self.aminmax()).tolist()
    if least < 0:
        raise RuntimeError(f"bincount only supports 1-d non-negative integral inputs; the least number is {least}.")
    if weights is None:
        addends = torch.ones_like(self, dtype=torch.int64)
    else:
        addends = weights if weights.dtype is torch.float32 else weights.double()
    counts = torch.zeros(max(most + 1, minlength), dtype=addends.dtype, device=self.device)
    return counts.index_add_(0, self if self.dtype is torch.int32 else self.long(), addends)


def _refuse_uncountable(self: Tensor, weights: Tensor | None, minlength: int) -> None:
    if self.dtype.is_floating_point or self.dtype.is_complex or self.dtype is torch.bool:
        raise NotImplementedError(f'"bincount" not implemented for {self.dtype}: it counts integers')
    if self.dim() != 1:
        raise RuntimeError(f"bincount only supports 1-d non-negative integral inputs, not {self.dim()}-d ones.")
    if minlength < 0:
        raise RuntimeError(f"minlength should be >= 0, not {minlength}")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError(
            f"weights should be 1-d and have the same length as input: {list(weights.shape)}, not {list(self.shape)}"
        )


def index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Implement `x[i, mask]`: masks become the places where they are true."""
    return _index(self, index_checks.without_masks(self, indices, _places_of))  # type: ignore[no-any-return]


_index = index_checks.KERNELS["index.Tensor"]


def _places_of(mask: Tensor) -> Sequence[Tensor]:
    return nonzero(mask).unbind(1)


def tensor_split(self: Tensor, tensor_indices_or_sections: Tensor, dim: int = 0) -> Sequence[Tensor]:
    """Implement `Tensor.tensor_split` at places that a tensor holds: views, whose sizes the host reads from it."""
    places = tensor_indices_or_sections
    if places.dtype is not torch.int64 or places.dim() > 1:  # PyTorch says what it thinks of such
        torch.tensor_split(torch.zeros([1] * self.dim()), torch.zeros(places.shape, dtype=places.dtype), dim)
    return self.tensor_split(places.tolist(), dim)


def register_splits() -> list[torch.library.Library]:
    """Replace PyTorch's composition, which reads the memory of the indices."""
    libraries = []
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        library = torch.library.Library("aten", "IMPL", key)
        library.impl("tensor_split.tensor_indices_or_sections", tensor_split, key)
        libraries.append(library)
    return libraries


KERNELS: dict[str, Callable[..., object]] = {
    "_reshape_from_tensor": lambda self, shape: self.reshape(shape.tolist()),
    "_unique": unique,
    "_unique2": unique2,
    "bincount": bincount,
    "index.Tensor": index,
    "masked_select": masked_select,
    "masked_select.out": masked_select_out,
    "nonzero": nonzero,
    "nonzero.out": nonzero_out,
    "repeat_interleave.Tensor": repeat_interleave,
    "unique_consecutive": unique_consecutive,
    "unique_dim": unique_dim,
    "unique_dim_consecutive": lambda self, dim, inverse=False, counts=False: unique_consecutive(
        self, inverse, counts, dim
    ),
}
