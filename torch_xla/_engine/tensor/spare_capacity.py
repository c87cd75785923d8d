"""Growing sequences padded to a capacity: the tokens of a text, and the keys and values that attention has seen.

`torch.cat([ids, token], -1)` gives a value of another size each time, so each step that contains it would be a program
of its own. The values of such a chain get a *room*: a buffer with spare capacity, and the number of valid elements is a
number of the program. The tensor has the size that PyTorch gives it; its value is cut from the room when an operation
needs it as it is. Decoding needs the room alone: it appends again, looks at the last element, casts, pads to a fixed
size, and attends to the room, with a mask of the valid places.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..ir.call_plan import Number, Operand, Plan, interned
from ..ir.tape import Ended, Tape, Value
from ..ir.value_spec import Spec, contiguous_stride, spec_of
from ..ir.view.geometry import Geometry
from ..lowering.machinery import capacity_ops
from .device import LOCK, empty_plan

# The least room: 4 KiB of int64, so that a text of a few hundred tokens never moves.
_LEAST = 512  # a power of two
_DTYPES = frozenset((torch.int64, torch.int32, torch.bool))
# The least room of keys and values, which are larger: one row is a vector for each head.
_LEAST_ROWS = 256
_MOST_KINDS = 1024

# By dtype and sizes in front of the last: how long the last value was to which one element was appended, and, once one
# of that length was appended to in turn, that such values grow.
_lengths: dict[tuple[object, ...], int] = {}
_GROWS = -1


class Grown(Value):
    """A value whose elements are the first `length` of a room along `dim`, -1 or -2. Computed only if needed."""

    __slots__ = ("dim", "length")

    def __init__(self, room: Value, length: int, dim: int = -1) -> None:
        size = _with_size(room.spec.size, dim, length)
        super().__init__(spec_of(size, contiguous_stride(size), room.spec.dtype), room.device, None, -1)
        self.room = room
        self.length = length
        self.dim = dim

    @property
    def state(self) -> str:
        """ "data" or "pending": it is never empty."""
        return "pending" if self.buffer is None else "data"


class Padded(Value):
    """A result of a program that many lengths share: the first part of its room, in each dimension."""

    __slots__ = ()

    @property
    def state(self) -> str:
        """ "data" or "pending": it is never empty."""
        return "pending" if self.buffer is None else "data"


def entered(tape: Tape, value: Value) -> int:
    """Enter a value that is not on `tape`, and return its slot; a value that has a room is cut from it first.

    -1 if the tape has ended.
    """
    if value.buffer is not None or value.tape is not None:
        return tape.enter(value)
    if not isinstance(value, Grown | Padded):
        return tape.enter(value, empty_plan(value))
    try:
        plan = Plan(capacity_ops.CUT, ((Operand(0), value.spec.size), {}), (value.room.spec,), (), (value.spec,))
        (made,) = _append(tape, plan, (value.room,))
    except Ended:
        return -1
    slot = made.slot
    # Garbage may have been collected, and a finalizer may have done the same, or had the tape evaluated.
    if tape.ended:
        return -1
    if value.tape is tape:
        return value.slot
    tape.values[slot] = value
    value.tape, value.slot = tape, slot
    return slot


def appended(value: Value, last: Value, dim: int = -1) -> Grown | None:
    """Return `value` with `last` behind it along `dim`; nothing if it is not known to grow.

    Integers grow along the last dimension, rows of numbers (a vector for each) along the one in front of it. Without
    gradients, the first element that is appended tells: a text is being written, and programs do not depend on whether
    another one was written before.
    """
    length = value.spec.size[dim]
    if (last.spec.dtype in _DTYPES) != (dim == -1) or (dim == -2 and not last.spec.dtype.is_floating_point):
        return None
    if isinstance(value, Grown):
        if value.dim != dim:
            return None
    elif torch.is_grad_enabled() and (dim == -2 or not _grows(value.spec)):
        return None
    # Integers have a dimension alone to name, which is left out.
    along: Any = () if dim == -1 else (dim,)
    with LOCK:
        room = value.room if isinstance(value, Grown) else value
        if room.spec.size[dim] <= length:
            capacity = max(_LEAST, 1 << (2 * length - 1).bit_length())
            if dim == -2:
                capacity = max(_LEAST_ROWS, 1 << length.bit_length())
            wider = _with_size(value.spec.size, dim, capacity)
            output = spec_of(wider, contiguous_stride(wider), value.spec.dtype)
            plan = Plan(capacity_ops.ENLARGE, ((Operand(0), capacity, *along), {}), (room.spec,), (), (output,))
            (room,) = _record(plan, (room,))
        arguments = (Operand(0), Operand(1), Number(0), *along)
        plan = Plan(capacity_ops.APPEND, (arguments, {}), (room.spec, last.spec), (int,), (room.spec,))
        (room,) = _record(plan, (room, last), (length,))
    return Grown(room, length + 1, dim)


def is_valid(value: Grown) -> Value:
    """Return a row of truth values: for each place of the room whether it counts. All dimensions but the last have size
    1.
    """
    size = (*(1 for _ in value.spec.size[:-1]), value.room.spec.size[value.dim])
    output = spec_of(size, contiguous_stride(size), torch.bool)
    plan = Plan(capacity_ops.IS_VALID, ((Operand(0), Number(0), value.dim), {}), (value.room.spec,), (int,), (output,))
    with LOCK:
        (found,) = _record(plan, (value.room,), (value.length,))
    return found


def _with_size(size: Sequence[int], dim: int, length: int) -> tuple[int, ...]:
    place = len(size) + dim
    return (*size[:place], length, *size[place + 1 :])


def _grows(spec: Spec) -> bool:
    """Return whether values like this are known to grow by one; notes that one more was appended to this."""
    kind = spec.dtype, spec.size[:-1]
    before = _lengths.get(kind)
    if before == _GROWS or before == spec.size[-1]:
        _lengths[kind] = _GROWS
        return True
    if len(_lengths) >= _MOST_KINDS:
        _lengths.clear()
    _lengths[kind] = spec.size[-1] + 1
    return False


def read_of_rows(value: Grown, view: Geometry) -> Value | None:
    """Return the read of a view of `value` that shows the same few elements of each row; `None` for other views."""
    if value.dim != -1:
        return None
    lead, steps = value.spec.size[:-1], value.spec.stride[:-1]
    shown, stride, offset = view.size, view.stride, view.offset
    if shown == lead:
        width = 1
    elif len(shown) == len(lead) + 1 and shown[:-1] == lead and (shown[-1] == 1 or stride[-1] == 1):
        width = shown[-1]
    else:
        return None
    fits = all(n == 1 or step == theirs for n, step, theirs in zip(lead, steps, stride, strict=False))
    if not fits or width == 0 or width == value.length or offset + width > value.length or 0 in lead:
        return None
    output = spec_of(shown, contiguous_stride(shown), value.spec.dtype)
    plan = Plan(capacity_ops.TAKE, ((Operand(0), Number(0), width, shown), {}), (value.room.spec,), (int,), (output,))
    with LOCK:
        (found,) = _record(plan, (value.room,), (offset,))
    return found


def padded(value: Grown, width: int, fill: object) -> Value:
    """Return `value` with `fill` behind it up to `width` elements along the dimension in which it grows."""
    size = _with_size(value.spec.size, value.dim, width)
    output = spec_of(size, contiguous_stride(size), value.spec.dtype)
    arguments: Any = (Operand(0), Number(0), width, fill, *(() if value.dim == -1 else (value.dim,)))
    plan = Plan(capacity_ops.PAD, (arguments, {}), (value.room.spec,), (int,), (output,))
    with LOCK:
        (found,) = _record(plan, (value.room,), (value.length,))
    return found


def _record(plan: Plan, operands: Sequence[Value], numbers: Sequence[int] = ()) -> list[Value]:
    while True:
        try:
            return _append(operands[0].device.tape, plan, operands, numbers)
        except Ended:  # the next tape takes it
            pass


def _append(tape: Tape, plan: Plan, operands: Sequence[Value], numbers: Sequence[int] = ()) -> list[Value]:
    slots = [each.slot if each.tape is tape else entered(tape, each) for each in operands]
    return tape.append(interned(plan), slots, operands[0].device, numbers)
