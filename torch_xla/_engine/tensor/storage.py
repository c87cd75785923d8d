"""The lazy value of a storage, which every alias reads and writes.

A tensor is PyTorch's: size, stride and offset over a storage. `storage.value` says what the storage holds now. A tensor
that shows the whole of it in its own order reads it for nothing; any other tensor records a read through its view.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any

import torch

from ..atomic import run_through, stores
from ..caching.interning import look_through, note_new
from ..compat.names import torch as private
from ..compat.names import torch_dispatch_keys
from ..compat.names.torch import address_of, redispatch_of
from ..ir.call_plan import Plan
from ..ir.sharding import Sharding
from ..ir.tape import Ended, Tape, Value, set_replaces
from ..ir.value_spec import Spec, spec_of
from ..ir.view.geometry import Geometry
from .device import LOCK, Device, device_for
from .op_user_lines import note_line
from .spare_capacity import Grown, entered
from .upload import dense_spec, upload
from .views import View, new_read_plan, new_write_plan, read_plans, view_of, write_plans

as_strided = redispatch_of(torch.ops.aten.as_strided.default)
_set = redispatch_of(torch.ops.aten.set_.source_Storage_storage_offset)
META_KEYS = torch_dispatch_keys.META_KEYS


def value_of(tensor: torch.Tensor) -> Value:
    """Return the value of the storage of `tensor`; one without a value is uninitialised memory."""
    storage = tensor.untyped_storage()
    value: Value | None = getattr(storage, "value", None)
    if value is None:
        value = _adopt(tensor, storage)
    return value


def _adopt(tensor: torch.Tensor, storage: torch.UntypedStorage, sharding: Sharding | None = None) -> Value:
    # The storage holds bytes from the host, for instance those of a file, or PyTorch made it without us. The first
    # tensor that looks at it gives the dtype and the order of memory; of two threads at once, the first one's.
    if tensor.device.type == "cpu":  # whose own memory would be forgotten
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, xla:0 and cpu! (move the "
            f"tensor of shape {list(tensor.shape)} with `.to('xla')`)"
        )
    with LOCK:
        found: Value | None = getattr(storage, "value", None)
        return _made(tensor, storage, sharding) if found is None else found


def _made(tensor: torch.Tensor, storage: torch.UntypedStorage, sharding: Sharding | None) -> Value:
    geometry = Geometry(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
    device = device_for(tensor.device)
    host: torch.UntypedStorage | None = getattr(storage, "host", None)
    if host is None:
        spec = spec_of((geometry.extent,), (1,), tensor.dtype)
        value = Value(spec, device, None, -1)
    else:
        value = upload(_as_first_seen(host, geometry, tensor.dtype), device, sharding)
        storage.host = None  # type: ignore[attr-defined]
    storage.value = value  # type: ignore[attr-defined]
    return value


def bring(tensor: torch.Tensor, sharding: Sharding | None) -> None:
    """Divide so what the storage of `tensor` holds on the host, on its way to the devices; does nothing else."""
    storage = tensor.untyped_storage()
    host: torch.UntypedStorage | None = getattr(storage, "host", None)
    is_here = host is not None and getattr(storage, "value", None) is None
    if is_here and host is not None and host.nbytes() == tensor.nbytes and tensor.is_contiguous():
        _adopt(tensor, storage, sharding)


def kept_on_host(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """Return a tensor on `device` with the contents of a CPU tensor, which are uploaded at its first use.

    On several devices the user may say until then how they are divided.
    """
    spec = dense_spec(tensor)
    made = wrap(Value(spec, device, None, -1))
    host = torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype).copy_(tensor.detach())
    storage: Any = made.untyped_storage()
    storage.host = host.untyped_storage()
    del storage.value
    return made


def _as_first_seen(host: torch.UntypedStorage, geometry: Geometry, dtype: torch.dtype) -> torch.Tensor:
    count, rest = divmod(host.nbytes(), dtype.itemsize)
    if rest:
        return torch.empty(0, dtype=torch.uint8).set_(host)  # type: ignore[call-overload, no-any-return]
    whole = torch.empty(0, dtype=dtype)
    if geometry.numel == count and geometry.offset == 0 and geometry.is_dense():
        return whole.set_(host, 0, geometry.size, geometry.stride)  # type: ignore[call-overload, no-any-return]
    return whole.set_(host, 0, (count,), (1,))  # type: ignore[call-overload, no-any-return]


def shows_all(tensor: torch.Tensor, spec: Spec) -> bool:
    """Return whether `tensor` shows the storage's value as it is."""
    return (
        tensor.shape == spec.size
        and tensor.stride() == spec.stride
        and tensor.dtype is spec.dtype
        and not (spec.is_complex and (tensor.is_conj() or tensor.is_neg()))
    )


_storage = torch.Tensor.untyped_storage
_value, _spec = attrgetter("value"), attrgetter("spec")

# PyTorch's own check that tensors have the forms of others, by the specs of these and what the first of them is. It
# takes a quarter of the time of the same look from Python.
_looks: dict[Any, Any] = {}
look_through(lambda: _looks.clear() or 0, 0)  # type: ignore[func-returns-value]  # it holds specs


def values_of_whole(tensors: Sequence[torch.Tensor]) -> tuple[list[Value], tuple[Spec, ...]] | None:
    """Return the values of `tensors`, and the specs of these, if each shows the whole of its storage as it is.

    Raises `AttributeError` if the storage of one has no value.
    """
    values = [*map(_value, map(_storage, tensors))]
    key = tuple(map(_spec, values)), tensors[0].__class__, tensors[0].requires_grad
    look = _looks.get(key)
    if look is not None and look.check(*tensors):
        return values, key[0]
    if any(value.spec.is_complex for value in values) or not all(map(shows_all, tensors, key[0])):
        return None
    _looks[key] = private.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    note_new()
    return values, key[0]


# More operands than these enter a tape together.
_FEW = 6


def record_plan(
    plan: Plan,
    operands: Sequence[Value | tuple[Value, View]],
    device: Device,
    numbers: Sequence[Any] = (),
    draws: Sequence[int] = (),
    keeps_line: bool = False,
) -> list[Value]:
    """Record one call, and returns the values of its results.

    An operand is a value, or what a view shows of one. Where garbage is collected meanwhile and a finalizer has the
    tape evaluated, the call goes to the next one.
    """
    with LOCK:
        while True:
            tape: Tape = device.tape
            slots: list[int] = []
            if len(operands) > _FEW:
                enter_all(tape, [each for each in operands if each.__class__ is Value and each.tape is None], device)
            for operand in operands:
                here = operand.__class__ is not tuple and operand.tape is tape  # type: ignore[union-attr]
                slots.append(operand.slot if here else slot_of(tape, operand, device))  # type: ignore[union-attr]
            if keeps_line:
                expected, position = tape.expected, len(tape.code)
                if expected is None or position >= len(expected) or expected[position] is not plan:
                    note_line(tape, position, numbers)
            try:
                return tape.append(plan, slots, device, numbers, draws)
            except Ended:
                pass


def enter_all(tape: Tape, operands: Sequence[Any], device: Device) -> None:
    """Give a slot on `tape` to each of the `operands` that is a computed value of `device` and on no tape.

    The others, which need more than that, are left to `Tape.enter`; so are all of them once the tape has ended.
    """
    values = tape.values
    if tape.placed is not None or not operands:
        return
    if not values:
        tape.begin()
    while True:
        slot = len(values)
        # One of another tape would let go of that tape, whose end may run finalizers, in the middle of the stores.
        kept = [
            each
            for each in dict.fromkeys(operands)
            if each.tape is None and each.buffer is not None and each.device is device and not each.shared
        ]
        entered = [each.spec for each in kept]
        # Nothing is allocated as these are run through, so no garbage is collected.
        slots = range(slot, slot + len(kept))
        given = chain(stores(kept, "tape", repeat(tape)), stores(kept, "slot", slots))
        if len(values) == slot:
            break  # or garbage was collected, and a finalizer has recorded something
    if not tape.ended:
        tape.code += entered
        values += kept
        run_through(given)


def slot_of(tape: Tape, operand: Value | tuple[Value, View], device: Device) -> int:
    """Return the slot on the tape of `device` of a value, or of a view of one."""
    value, view = operand if isinstance(operand, tuple) else (operand, None)
    if value.device is not device:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{device.torch_device} and {value.device.torch_device}!"
        )
    return operand_slot(tape, value) if view is None else read_slot(tape, value, view)


def operand_slot(tape: Tape, value: Value) -> int:
    """Return the slot of a storage's value on `tape`; -1 if the tape has ended."""
    if value.tape is tape:
        return value.slot
    return entered(tape, value)


def read_slot(tape: Tape, value: Value, view: View) -> int:
    """Return the slot of a view of `value`; the read is recorded once per tape. -1 if the tape has ended."""
    if value.__class__ is Grown and (taken := view.taken(value)) is not None:
        return taken.slot
    base = operand_slot(tape, value)
    slot = tape.reads.get((base, view))
    if slot is None:
        plan = read_plans.get((value.spec, view))
        if plan is None:
            plan = new_read_plan(value.spec, view)
        try:
            (shown,) = tape.append(plan, (base,), value.device, view.numbers if plan.numbers else ())
        except Ended:
            return -1
        slot = tape.reads[base, view] = shown.slot
    return slot


class Overtaken(Exception):
    """Another thread, or a finalizer, wrote to the memory that a call reads and writes: the call has to read again.

    Kernels on one stream of a GPU take turns. Here a call reads its operands, is planned and recorded, perhaps
    compiled, and puts its result in place at the end. No lock is held for so long. Instead the memory is given its new
    value under the lock, and only if it still holds what the call has read.
    """


def refuse_if_overtaken(tensors: Sequence[torch.Tensor], read: Sequence[Any]) -> None:
    """Raise `Overtaken` unless each of the `tensors` still shows the operand that was `read` of it.

    An operand is a value, or (value, view). The caller holds the lock.
    """
    for tensor, operand in zip(tensors, read, strict=True):
        base = value_of(tensor)
        # Each read of a value that grows is another value.
        if base is not (operand[0] if operand.__class__ is tuple else operand) and base.__class__ is not Grown:
            raise Overtaken


def hold(tensor: torch.Tensor, value: Value, read: Sequence[Any] = ()) -> None:
    """Make `value`, of the shape and dtype of `tensor`, what `tensor` shows from now on.

    Raises `Overtaken` if `tensor` does not show any more what was `read` of it: one operand, where there is one.
    """
    storage: Any = tensor.untyped_storage()
    with LOCK:
        if read:
            refuse_if_overtaken((tensor,), read)
        while True:
            base = value_of(tensor)
            written = _written(tensor, base, value)
            if read and (tape := base.tape) is not None and written.tape is tape:  # as `note_replaced`, without a call
                written.replaces = tape.first_slot + base.slot
            # No other thread gives it another value, but recording may collect garbage, and a finalizer may write.
            if storage.value is base:
                storage.value = written
                return
            if read:
                raise Overtaken


def hold_together(tensors: Sequence[torch.Tensor], values: Sequence[Value], read: Sequence[Any] = ()) -> None:
    """Call `hold` for each of the `tensors` and its value: an interrupt finds all of them written, or none."""
    with LOCK:
        while True:
            if read:
                refuse_if_overtaken(tensors, read)
            storages: dict[int, Any] = {}
            bases: dict[int, Value] = {}
            held: dict[int, Value] = {}
            for tensor, value in zip(tensors, values, strict=True):
                storage = tensor.untyped_storage()
                place = address_of(storage)
                base = bases.setdefault(place, value_of(tensor))
                # Several may show parts of one storage.
                held[place] = _written(tensor, held.get(place, base), value)
                storages[place] = storage
            if read:
                note_replaced(bases.values(), held.values())
            if replaced(storages.values(), bases.values(), held.values()):
                return


def note_replaced(before: Collection[Value], values: Collection[Value]) -> None:
    """Note which value of its tape each of the new `values` is written over: so a refused step can be undone."""
    slots = [
        tape.first_slot + base.slot if (tape := base.tape) is not None and value.tape is tape else -1
        for base, value in zip(before, values, strict=True)
    ]
    run_through(map(set_replaces, values, slots))


def replaced(storages: Collection[Any], before: Collection[Value], values: Collection[Value]) -> bool:
    """Give all of the `storages` their new `values`, if all hold what they held `before`. The caller holds the lock.

    A finalizer comes before the look at the first, or behind the last store.
    """
    ours = map(_agree, map(is_, map(_value, storages), before))
    try:
        run_through(chain(ours, stores(storages, "value", values)))
    except Overtaken:
        return False
    return True


class _Refusing(dict[bool, None]):
    def __missing__(self, key: bool) -> None:
        raise Overtaken


_agree: Callable[[bool], None] = _Refusing({True: None}).__getitem__


def _written(tensor: torch.Tensor, base: Value, value: Value) -> Value:
    """Return the value that replaces `base` in the storage of `tensor` when `value` is written to `tensor`."""
    if shows_all(tensor, base.spec):
        return value
    view = view_of(tensor)
    with LOCK:
        plan = write_plans.get((base.spec, view))
        if plan is None:
            plan = new_write_plan(base.spec, view)
        (written,) = record_plan(plan, (base, value), base.device, view.numbers if plan.numbers else ())
    return written


def wrap(value: Value) -> torch.Tensor:
    """Return a new tensor whose storage holds `value`."""
    spec = value.spec
    device: Device = value.device
    tensor = device.new_tensor(spec.size, spec.dtype)
    tensor.untyped_storage().value = value  # type: ignore[attr-defined]
    if not spec.is_contiguous:
        tensor = as_strided(META_KEYS, tensor, spec.size, spec.stride, 0)
    return tensor


def wrap_all(values: Sequence[Value]) -> list[torch.Tensor]:
    """Return a new tensor for each of the `values`, which are of one device."""
    if not values:
        return []
    specs = [*map(_spec, values)]
    tensors = [*map(values[0].device.new_tensor, [spec.size for spec in specs], [spec.dtype for spec in specs])]
    run_through(stores(map(_storage, tensors), "value", values))
    for nth, spec in enumerate(specs):
        if not spec.is_contiguous:
            tensors[nth] = as_strided(META_KEYS, tensors[nth], spec.size, spec.stride, 0)
    return tensors


def point_at(
    tensor: torch.Tensor, storage: Any, offset: int, size: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    """Make `tensor` itself a view of `storage`."""
    if storage.resizable():
        return _set(META_KEYS, tensor, storage, offset, size, stride)  # type: ignore[no-any-return]
    # On ordinals above 0 storages are not resizable. The Meta kernel insists on that, unless nothing is shown.
    _set(META_KEYS, tensor, storage, 0, [0], [1])
    tensor.data = as_strided(META_KEYS, tensor, size, stride, offset)
    return tensor


def snapshot(tensor: torch.Tensor) -> Value:
    """Return the present contents of `tensor` as a value: that of its storage, or a recorded read of it."""
    value = value_of(tensor)
    if shows_all(tensor, value.spec):
        return value
    view = view_of(tensor)
    with LOCK:
        while True:
            tape: Tape = value.device.tape
            slot, values = read_slot(tape, value, view), tape.values
            if not tape.ended:
                return values[slot]
