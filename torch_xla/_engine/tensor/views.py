"""How tensors look at their storages, and the plans that read and write a storage through such a view."""

from collections.abc import Callable, Hashable

import torch

from ..caching.interning import drop_unheld, look_through, note_new, table_of_plans
from ..ir.call_plan import Number, Operand, Plan
from ..ir.tape import Value
from ..ir.value_spec import Spec, contiguous_stride, spec_of
from ..ir.view.dynamic_start import at_start, is_moved
from ..ir.view.geometry import Geometry
from ..lowering.views.storage_access import READ, WRITE
from .spare_capacity import Grown, read_of_rows


class ViewKind:
    """The part that views have in common which differ only in their offset. Interned: a call on them has one plan."""

    __slots__ = ("first", "shown")

    def __init__(self, first: Geometry, dtype: torch.dtype) -> None:
        self.first = first  # of the view that begins where the storage does
        self.shown = spec_of(first.size, contiguous_stride(first.size), dtype)


class View:
    """How a tensor looks at its storage. Interned, so `is` compares two views."""

    __slots__ = ("conj", "dtype", "geometry", "kind", "neg", "numbers", "shown")

    def __init__(self, geometry: Geometry, dtype: torch.dtype, conj: bool, neg: bool, kind: ViewKind) -> None:
        self.geometry = geometry
        self.dtype = dtype
        self.conj = conj  # it shows the complex conjugates
        self.neg = neg  # it shows the negatives
        self.kind = kind
        self.shown = kind.shown
        self.numbers = (geometry.offset,)  # of a plan that serves all of its kind

    def taken(self, value: Grown) -> Value | None:
        """Return its read of a growing `value`, if the room alone gives it."""
        return read_of_rows(value, self.geometry) if self.dtype is value.spec.dtype else None


_kinds: dict[Hashable, ViewKind] = {}
_views: dict[Hashable, View] = {}

# By view; and, where one plan serves all of a kind, by kind too.
read_plans: dict[tuple[Spec, View | ViewKind], Plan] = {}
write_plans: dict[tuple[Spec, View | ViewKind], Plan] = {}

table_of_plans(read_plans)
table_of_plans(write_plans)
look_through(lambda: drop_unheld(_views), 0)
look_through(lambda: drop_unheld(_kinds), 1)


def view_of(tensor: torch.Tensor) -> View:
    """Return how `tensor` looks at its storage."""
    dtype = tensor.dtype
    conj = dtype.is_complex and tensor.is_conj()
    key = (tensor.shape, tensor.stride(), tensor.storage_offset(), dtype, conj, tensor.is_neg())
    view = _views.get(key)
    if view is None:
        geometry = Geometry(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
        first = at_start(geometry)
        kind = _kinds.setdefault((first, dtype, conj, tensor.is_neg()), ViewKind(first, dtype))
        view = _views.setdefault(key, View(geometry, dtype, conj, tensor.is_neg(), kind))
        note_new()
    return view


def refuse_beyond(spec: Spec, geometry: Geometry, dtype: torch.dtype) -> None:
    """Raise as PyTorch does if a view of this `geometry` and `dtype` reaches beyond a storage of this `spec`."""
    needed = geometry.extent * dtype.itemsize
    has = spec.numel * spec.dtype.itemsize
    if needed > has:
        raise RuntimeError(
            f"setStorage: sizes {list(geometry.size)}, strides {list(geometry.stride)}, storage offset "
            f"{geometry.offset}, and itemsize {dtype.itemsize} requiring a storage size of {needed} are out of "
            f"bounds for storage of size {has}"
        )


def new_read_plan(spec: Spec, view: View) -> Plan:
    """Make the plan that reads a value of this `spec` through `view`, and keep it in `read_plans`."""
    plan = read_plans[spec, view] = _plan_of(read_plans, spec, view, _read_plan)
    return plan


def new_write_plan(spec: Spec, view: View) -> Plan:
    """Make the plan that writes a value of this `spec` through `view`, and keep it in `write_plans`."""
    plan = write_plans[spec, view] = _plan_of(write_plans, spec, view, _write_plan)
    return plan


def _plan_of(
    plans: dict[tuple[Spec, View | ViewKind], Plan], spec: Spec, view: View, make: Callable[[Spec, View, bool], Plan]
) -> Plan:
    """Return the plan of a new view: that of its kind, with the offset as a number, if one plan serves all."""
    refuse_beyond(spec, view.geometry, view.dtype)  # in `torch.inference_mode()` nothing looks at a new view
    base, writes = Geometry(spec.size, spec.stride), plans is write_plans
    repeats = any(not step for step in view.geometry.stride) and writes
    if view.dtype is not spec.dtype or repeats or not is_moved(base, view.geometry, unit_steps=writes):
        return make(spec, view, False)
    plan = plans.get((spec, view.kind))
    return plans.setdefault((spec, view.kind), make(spec, view, True)) if plan is None else plan


def _view_arguments(spec: Spec, view: View, of_kind: bool) -> tuple[object, ...]:
    geometry = view.kind.first if of_kind else view.geometry
    arguments = Geometry(spec.size, spec.stride), geometry, spec.dtype, view.dtype, view.conj, view.neg
    return (*arguments, Number(0)) if of_kind else arguments


def _read_plan(spec: Spec, view: View, of_kind: bool) -> Plan:
    arguments = (Operand(0), *_view_arguments(spec, view, of_kind))
    return Plan(READ, (arguments, {}), (spec,), (int,) if of_kind else (), (view.shown,))


def _write_plan(spec: Spec, view: View, of_kind: bool) -> Plan:
    arguments = (Operand(0), Operand(1), *_view_arguments(spec, view, of_kind))
    return Plan(WRITE, (arguments, {}), (spec, view.shown), (int,) if of_kind else (), (spec,))
