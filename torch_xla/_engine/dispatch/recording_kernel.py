"""The kernel behind almost every operator: look the call up, append it to the tape, make the output tensors.

This is the hot path: a step of a small model passes here a thousand times. A call is planned once per operator,
geometry of the operands and static arguments (`call_planning`), and its plan is found again by one dictionary look-up.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..compat.names import torch as private
from ..compat.names.torch import schema_of
from ..ir.call_plan import Plan
from ..ir.tape import Value
from ..ir.value_spec import Spec
from ..metrics.observers import observers
from ..step.sync import TAPE_LIMIT, relieve
from ..tensor.device import LOCK, Device, device_for, let_go
from ..tensor.op_user_lines import note_line
from ..tensor.spare_capacity import Grown
from ..tensor.storage import (
    META_KEYS,
    Overtaken,
    as_strided,
    hold,
    hold_together,
    note_replaced,
    record_plan,
    refuse_if_overtaken,
    replaced,
    slot_of,
    value_of,
    values_of_whole,
    wrap,
    wrap_all,
)
from ..tensor.torch_generator import state_of
from ..tensor.views import view_of
from . import call_planning, cpu_fallback, foreach_aliasing
from .call_planning import SMALLEST_NORMAL, Call, Entry
from .checks import cpu_errors
from .checks.mixed_devices import admit
from .op_schema import Operator, operator_of, read_by, written_by
from .out_variants import fill_of

Kernel = Callable[..., Any]
Plans = dict[tuple[Any, ...], Entry]

_INT64 = range(-(1 << 63), 1 << 63)
_TENSORS, _FLOATS, _BOOLS, _INTS = map(frozenset, ((Tensor, Parameter), (float,), (bool,), (int,)))

# So long a tape may be for the short way through a kernel: never, while each operation runs when it is called.
_longest = TAPE_LIMIT


def run_at_once(run: Callable[[Entry, Operator, Any, Any, Call], Any] | None) -> None:
    """Call `run` instead of `record_call` for every call that has operands from now on; `None` ends that."""
    global _longest
    _longest, observers.run_call = -1, run
    _choose_way()


@contextmanager
def as_now() -> Iterator[None]:
    """Restore after a `with` block, however it ends, whether operations run when they are called."""
    global _longest
    run = observers.run_call
    try:
        yield
    finally:
        # By stores: where a function begins there may be an interrupt. One behind them leaves the longer way on.
        _longest, observers.run_call = -1, run
        _choose_way()


def runs_at_once() -> bool:
    """Return whether operations run when they are called."""
    return observers.run_call is not None


def look_at_calls(look: Callable[[Plan, Call], None] | None) -> None:
    """Show `look` every call that has operands, before it is recorded, from now on; `None` ends that."""
    observers.register("look_at_call", look)
    _choose_way()


def _choose_way() -> None:
    global _longest
    _longest = TAPE_LIMIT if observers.run_call is None and observers.look_at_call is None else -1


# PyTorch's default dtype if it is not float32: what a call means may depend on it.
_default_dtype: torch.dtype | None = None


def note_default_dtype() -> None:
    """Keep plans of calls made under different default dtypes apart; called whenever the default changes."""
    global _default_dtype
    dtype = torch.get_default_dtype()
    _default_dtype = None if dtype is torch.float32 else dtype


def take_apart(argument: Any, takes_scalar: bool, call: Call) -> None:
    """Add one argument to `call`; raise `AttributeError` for a tensor that is not on our device."""
    kind = argument.__class__
    signature, operands, numbers = call
    if kind is float and not 0 < abs(argument) < SMALLEST_NORMAL:  # as `is_subnormal`, without a call
        signature.append(float)
        numbers.append(argument)
    elif kind is int and takes_scalar and argument in _INT64:
        signature.append(int)
        numbers.append(argument)
    elif isinstance(argument, Tensor):
        value: Value = argument.untyped_storage().value  # type: ignore[attr-defined]
        spec = value.spec
        if (
            argument.shape == spec.size
            and argument.stride() == spec.stride
            and argument.dtype is spec.dtype
            and not (spec.is_complex and (argument.is_conj() or argument.is_neg()))
        ):
            operands.append(value)
            signature.append(spec)
        else:
            view = view_of(argument)
            if value.__class__ is Grown and (taken := view.taken(value)) is not None:
                operands.append(taken)
                signature.append(taken.spec)
            else:
                operands.append((value, view))
                signature.append(view.kind)
    elif kind is list or kind is tuple:
        signature.append(len(argument))
        kinds = set(map(type, argument))  # the lists of an optimizer's step are long: together, where they are alike
        if kinds and kinds <= _TENSORS and (whole := values_of_whole(argument)) is not None:
            operands += whole[0]
            signature.append(whole[1])
        elif kinds == _FLOATS:
            numbers += argument
            signature.append(_FLOATS)
        elif kinds == _BOOLS:
            signature.append((bool, *argument))
        elif kinds == _INTS and not takes_scalar:
            signature += argument
        else:
            for element in argument:
                take_apart(element, takes_scalar, call)
    elif kind is torch.Generator:
        signature.append(kind)
    else:
        # `True` and `1` are equal as keys, and both may come where a scalar is expected.
        signature.append((bool, argument) if kind is bool else argument)


def _take_keywords_apart(kwargs: dict[str, Any], operator: Operator, call: Call) -> None:
    for keyword, argument in kwargs.items():
        call[0].append(keyword)
        take_apart(argument, keyword in operator.scalars, call)


def append(plan: Plan, call: Call, device: Device, generator: torch.Generator | None = None) -> list[Value]:
    """Record one call and return the values of its results."""
    with LOCK:
        if len(device.tape.values) > TAPE_LIMIT:
            relieve(device)
        draws = draw(plan, device, generator) if plan.draws else ()
        return record_plan(plan, call[1], device, call[2], draws, keeps_line=True)


# How many states were taken from generators that calls were given: two readings show any between them.
given_draws = 0


def draw(plan: Plan, device: Device, generator: torch.Generator | None) -> list[int]:
    """Return the states for the random numbers of one call."""
    global given_draws
    if generator is None:
        return [device.generator.draw() for _ in range(plan.draws)]
    own = state_of(generator)
    if own is None:
        raise RuntimeError(
            f"Expected a 'xla' device type for generator but found '{generator.device.type}': {plan.op} draws on xla. "
            "Make one with torch.Generator(device='xla'), or leave generator= out to draw from the device's own."
        )
    given_draws += plan.draws
    return [own.draw() for _ in range(plan.draws)]


def recorder_of_two(name: str) -> Kernel:
    """Return the kernel of a functional operator that may be called with two tensors and nothing else.

    Such calls are the most frequent, and take the way of `recorder` with its loops unrolled: 0.5 of 4.4 µs less.
    """
    plans: Plans = {}
    record = recorder(name, plans)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 2 or kwargs:
            return record(*args, **kwargs)
        a, b = args
        try:
            first: Value = a.untyped_storage().value
            second: Value = b.untyped_storage().value
        except AttributeError:
            return record(a, b)
        spec, other = first.spec, second.spec
        if (
            a.shape != spec.size
            or b.shape != other.size
            or a.stride() != spec.stride
            or b.stride() != other.stride
            or a.dtype is not spec.dtype
            or b.dtype is not other.dtype
            or spec.is_complex
            or other.is_complex
            or _default_dtype is not None
            or (entry := plans.get((spec, other))) is None
            or not entry.is_simple
        ):
            return record(a, b)
        device: Device = first.device
        plan: Plan = entry.plan  # type: ignore[assignment]
        made = None
        try:
            LOCK.acquire()
            values = (tape := device.tape).values
            if len(values) <= _longest:
                here = first.slot if first.tape is tape else slot_of(tape, first, device)
                there = second.slot if second.tape is tape else slot_of(tape, second, device)
                code, expected, position = tape.code, tape.expected, len(tape.code)
                if expected is None or position >= len(expected) or expected[position] is not plan:
                    note_line(tape, position)
                kept, recorded = (Value(plan.outputs[0], device, tape, -1),), (plan, here, there)
                if not tape.ended:  # a finalizer may have had it evaluated; from here on no garbage is collected
                    (made := kept[0]).slot = len(values)
                    code += recorded
                    values += kept
        except BaseException:
            let_go()
            raise
        LOCK.release()
        if made is None:
            return _record(entry, operator_of(name), args, kwargs, ([], [first, second], []))
        out = made.device.new_tensor((spec := made.spec).size, spec.dtype)
        out.untyped_storage().value = made  # type: ignore[attr-defined]
        return out if spec.is_contiguous else as_strided(META_KEYS, out, spec.size, spec.stride, 0)

    return kernel


def recorder(name: str, plans: Plans | None = None) -> Kernel:
    """Return the kernel of a functional operator, or of one that writes to its arguments; it may share `plans`."""
    call_planning.keep(plans := {} if plans is None else plans)
    operator: Operator | None = None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal operator
        if operator is None:
            operator = operator_of(name)
        signature, operands, numbers = call = [], [], []  # type: Call
        try:  # as in `take_apart`: a call of a function here costs a tenth of the whole
            for position, argument in enumerate(args):
                if (kind := argument.__class__) is Tensor or kind is Parameter:
                    spec: Spec = (value := argument.untyped_storage().value).spec
                    fits = argument.shape == spec.size and argument.stride() == spec.stride
                    if fits and argument.dtype is spec.dtype and not spec.is_complex:
                        operands.append(value)
                        signature.append(spec)
                        continue
                take_apart(argument, position in operator.scalars, call)
            if kwargs:
                _take_keywords_apart(kwargs, operator, call)
        except AttributeError:
            args, kwargs = admit(operator, args, kwargs)
            return kernel(*args, **kwargs)
        signature.extend(() if _default_dtype is None else (_default_dtype,))
        if (entry := plans.get(key := tuple(signature))) is None:  # of two threads here at once, one plan counts
            entry = plans.setdefault(key, call_planning.plan_call(operator, args, kwargs, call))
        value = made = None  # this call may write to the value: who else holds it is counted
        if entry.makes_new and operands:  # almost every call
            device: Device = (first[0] if isinstance(first := operands[0], tuple) else first).device
            plan: Plan = entry.plan  # type: ignore[assignment]
            try:  # as in `append`, which would cost a sixth of the whole
                LOCK.acquire()  # `with` takes twice as long; inside, because an interrupt may come right behind it
                values = (tape := device.tape).values
                if len(values) <= _longest:
                    recorded: list[Any] = [plan]
                    for own in operands:
                        slot = own.slot if isinstance(own, Value) and own.tape is tape else slot_of(tape, own, device)
                        recorded.append(slot)
                    expected, position = tape.expected, len(tape.code)
                    if expected is None or position >= len(expected) or expected[position] is not plan:
                        note_line(tape, position, numbers)
                    at, one = len(values), not entry.nested
                    kept = [Value(plan.outputs[0], device, tape, at)] if one else tape.results_of(plan, device, at)
                    if not tape.ended and len(values) == at:  # else a finalizer has recorded; from here on none runs
                        made = kept
                        tape.code += recorded
                        tape.numbers += numbers
                        values += kept
            except BaseException:
                let_go()
                raise
            LOCK.release()
        if made is None or entry.nested:
            return _record_in_turn(kernel, entry, operator, args, kwargs, call) if made is None else _nest(entry, made)
        out = made[0].device.new_tensor((spec := made[0].spec).size, spec.dtype)
        out.untyped_storage().value = made[0]  # type: ignore[attr-defined]
        return out if spec.is_contiguous else as_strided(META_KEYS, out, spec.size, spec.stride, 0)

    return kernel


def _record_in_turn(
    kernel: Kernel,
    entry: Entry,
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: Call,
) -> Any:
    """Return `_record`; where another thread has written to what the call reads and writes, `kernel` reads it again."""
    try:
        return _record(entry, operator, args, kwargs, call)
    except Overtaken:  # its recorded operations are not used
        call[1].clear()
    return kernel(*args, **kwargs)


def _record(entry: Entry, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    """Record any call: with several results, written ones, random numbers, or none of our operands."""
    if not entry.is_settled:
        entry, call = call_planning.settle(entry, operator, args, kwargs, call)
    if entry.plan is None:
        return cpu_fallback.run(operator, args, kwargs)
    if operator.bumps and foreach_aliasing.are_entangled(args, call[1]):
        return foreach_aliasing.one_by_one(operator, args, kwargs)
    if (look := observers.look_at_call) is not None and call[1]:
        look(entry.plan, call)
    if (run := observers.run_call) is not None and call[1]:
        return run(entry, operator, args, kwargs, call)
    return record_call(entry, operator, args, kwargs, call)


def record_call(entry: Entry, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    """Record a call that has a plan, and return what the operator returns."""
    plan: Plan = entry.plan  # type: ignore[assignment]
    results = append(plan, call, device_of(call[1], kwargs), generator_of(args, kwargs) if plan.draws else None)
    return give(entry, operator, args, kwargs, results, call[1])


def give(
    entry: Entry,
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    values: list[Value],
    operands: list[Any],
) -> Any:
    """Return the results of an operator with these `values`: new tensors, or the written tensors, which now show them.

    Raises `Overtaken` if the written tensors do not have the values of the `operands` any more.
    """
    if entry.writes:
        return _write_back(entry, operator, args, kwargs, values, operands)
    return _nest(entry, values) if entry.nested else wrap(values[0])


def device_of(operands: list[Any], kwargs: dict[str, Any]) -> Device:
    """Return the device a call runs on: that of its first operand."""
    if not operands:
        return device_for(kwargs.get("device"))
    first = operands[0]
    device: Device = first[0].device if first.__class__ is tuple else first.device
    return device


def generator_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """Return the generator that a call was given."""
    return next((a for a in (*args, *kwargs.values()) if isinstance(a, torch.Generator)), None)


def _nest(entry: Entry, values: list[Value]) -> Sequence[torch.Tensor | int | None]:
    """Return tensors of the results, nested as the operator returns them."""
    assert entry.plan is not None
    if entry.is_list:
        return wrap_all(values)
    results: list[Any] = []
    rest = iter(values)
    for position, length in enumerate(entry.plan.structure):
        if length == -1:
            results.append(wrap(next(rest)))
        elif length == -2:
            results.append(entry.constants[position] if entry.constants else None)
        else:
            results.append([wrap(next(rest)) for _ in range(length)])
    return tuple(results)


def _write_back(
    entry: Entry,
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    values: list[Value],
    operands: list[Any],
) -> Any:
    refuse_overlap(entry, operator, args, kwargs)
    targets = written_by(operator, args, kwargs)
    read = read_by(operator, args, kwargs, operands)
    if entry.unchanged:
        changed = [nth for nth in range(len(targets)) if nth not in entry.unchanged]
        targets, values = [targets[nth] for nth in changed], [values[nth] for nth in changed]
        read = [read[nth] for nth in changed]
    if len(targets) == 1:
        hold(targets[0], values[0], read)
    elif entry.whole:
        with LOCK:
            if not replaced([*map(Tensor.untyped_storage, targets)], read, values):
                raise Overtaken
            note_replaced(read, values)
    else:
        hold_together(targets, values, read)
    return returned_by(operator, args, kwargs)


def refuse_overlap(entry: Entry, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise as PyTorch does if an operand shows part of the memory that this call writes to."""
    if entry.watched:
        if isinstance(args[0], Tensor):
            cpu_errors.refuse_partial_overlap(operator, [args[0]], args, kwargs)
        elif operator.bumps:
            cpu_errors.refuse_partial_overlap_of_lists(args)


def returned_by(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operator that writes to its arguments. Count its writes where PyTorch does not."""
    first: Any = operator.written[0]
    target = args[first] if isinstance(first, int) else kwargs[first]
    if operator.bumps:
        private.increment_version(target)
    return target if operator.returns else None  # None: as `_foreach_add_`


def out_variant(name: str) -> Kernel:
    """Return the kernel of an `out=` overload: computes, then resizes and fills the tensors given."""
    operator: Operator | None = None
    compute: Kernel | None = None
    names: list[str] = []

    settled: set[Any] = set()

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal operator, compute
        if operator is None or compute is None:
            operator = operator_of(name)
            names.extend(a.name for a in schema_of(operator.overload).arguments if a.is_out)
            if operator.functional is not None:
                compute = recorder(operator.functional.name())
        if compute is None:
            return cpu_fallback.run(operator, args, kwargs)
        outs = [kwargs[n] for n in names]
        rest = {k: v for k, v in kwargs.items() if k not in names}
        if operator.makes_dtype:
            rest["dtype"] = outs[0].dtype
        given = [each.untyped_storage() for each in args if isinstance(each, Tensor)]
        both = [out for out in outs if out.untyped_storage() in given]  # read and written
        read = list(map(value_of, both))
        try:
            results = compute(*args, **rest)
        except NotImplementedError as error:  # the CPU may look at the dtype of `out` first
            raise (cpu_errors.refusal_of_the_cpu(operator, args, kwargs) or error) from None
        flat = [results] if isinstance(results, Tensor) else list(results)
        cpu_errors.refuse_overlapping_out(operator, outs, flat, args, kwargs)
        changes = tuple((out.dtype, result.dtype) for out, result in zip(outs, flat, strict=True))
        asked = changes, tuple(each for each in (*args, *kwargs.values()) if isinstance(each, torch.dtype))
        if asked not in settled:
            if any(ours is not theirs for ours, theirs in changes):
                cpu_errors.refuse_if_the_cpu_does(operator, args, kwargs)
            settled.add(asked)
        cpu_errors.refuse_resizing_operands(operator, outs, flat, args, kwargs)
        cpu_errors.refuse_partial_overlap(operator, outs, args, kwargs)
        if not both:
            fill_of(name, outs, flat)
        else:
            try:
                with LOCK:
                    refuse_if_overtaken(both, read)
                    fill_of(name, outs, flat)
            except Overtaken:
                return kernel(*args, **kwargs)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return kernel
