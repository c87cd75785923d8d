"""The form of an aten overload, read from its schema: functional, in place, `out=` or view."""

import functools
from dataclasses import dataclass
from enum import Enum, auto
from itertools import repeat
from typing import Any

import torch

from ..compat.names.torch import OpOverload, overload_name_of, schema_of, takes_numbers_as_tensors
from ..lowering.views.storage_access import PLACES


class Form(Enum):
    """The four ways an operator treats memory."""

    FUNCTIONAL = auto()  # new results, arguments untouched
    INPLACE = auto()  # writes to arguments and returns them
    OUT = auto()  # writes to `out=` arguments
    VIEW = auto()  # returns another look at an argument's storage


# In-place overloads whose functional sibling has another name or overload.
_SIBLINGS = {
    "__ilshift__.Scalar": "__lshift__.Scalar",
    "__ilshift__.Tensor": "__lshift__.Tensor",
    "__irshift__.Scalar": "__rshift__.Scalar",
    "__irshift__.Tensor": "__rshift__.Tensor",
    "bernoulli_.float": "bernoulli.p",
    "floor_divide_.Tensor": "floor_divide.default",
    "pow_.Scalar": "pow.Tensor_Scalar",
    "pow_.Tensor": "pow.Tensor_Tensor",
    "normal_.default": "normal_functional.default",
    "_index_put_impl_.default": "index_put.default",
    "_fused_adam_.default": "_fused_adam.default",
    "rrelu_with_noise_.default": "rrelu_with_noise_functional.default",
}

# The arguments that operators write to though their schemas do not declare it, by position. Those of CUDA alone are
# left out, and so are compositions of others.
WRITES_UNDECLARED = {
    "aten::batch_norm_gather_stats": (3, 4),
    "aten::batch_norm_gather_stats_with_counts": (3, 4),
    "aten::batch_norm_update_stats": (1, 2),
    "aten::native_batch_norm": (3, 4),
}


# The arguments that operators write to if these are their first ones.
_FIRST = tuple(range(8))


@dataclass(frozen=True, slots=True)
class Operator:
    """An overload with what a kernel must know of its schema."""

    overload: OpOverload
    form: Form
    functional: OpOverload | None  # the overload whose rule computes it
    written: tuple[int | str, ...]  # the arguments it writes to: position, or keyword
    scalars: frozenset[int | str]  # the arguments that take a Python number of any kind, and places
    index_like: bool  # its index operands may live on the CPU
    returns: bool  # some in-place operators return nothing
    bumps: bool  # it counts its writes in the version counters itself
    defaults: tuple[tuple[int, str, object], ...]  # arguments that may be left out here, but not of `functional`
    makes_dtype: bool  # `functional` takes a dtype, which this one reads off its `out=`
    reordered: tuple[int, ...]  # positions of the arguments of `functional`, if their order differs

    @property
    def name(self) -> str:
        """As in "aten::add.Tensor"."""
        return self.overload.name()


def form_of(op: OpOverload) -> Form:
    """Return the form of an overload."""
    written = [a for a in schema_of(op).arguments if a.alias_info and a.alias_info.is_write]
    if any(a.is_out for a in written):
        return Form.OUT
    if written or torch.Tag.inplace_view in op.tags:
        return Form.INPLACE
    return Form.VIEW if any(r.alias_info for r in schema_of(op).returns) else Form.FUNCTIONAL


def resolve(name: str) -> OpOverload:
    """Return the overload called `name`, such as "aten::add.Tensor" or "aten::relu"."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found: OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    return found


@functools.cache
def operator_of(name: str) -> Operator:
    """Return the operator called `name`."""
    op = resolve(name)
    form = form_of(op)
    arguments = schema_of(op).arguments
    written: list[int | str] = []
    scalars: set[int | str] = set()
    for position, argument in enumerate(arguments):
        if argument.alias_info and argument.alias_info.is_write:
            written.append(argument.name if argument.kwarg_only else position)
        kind = str(argument.type)
        is_place = argument.name in PLACES.get(op, ())
        if is_place or kind in ("Tensor", "Optional[Tensor]", "number", "Optional[number]", "List[number]"):
            scalars.update((position, argument.name))
    packet_name = schema_of(op).name.split("::")[1]
    index_like = packet_name.strip("_") in ("index", "index_put", "index_put_impl", "unsafe_index", "unsafe_index_put")
    functional = _functional_sibling(op, form)
    return Operator(
        op,
        form,
        functional,
        tuple(written),
        frozenset(scalars),
        index_like,
        bool(schema_of(op).returns),
        form is Form.INPLACE and packet_name.startswith("_foreach_"),
        _lost_defaults(op, functional),
        form is Form.OUT and _names_dtype(functional) and not _names_dtype(op),
        _reordered(op, functional),
    )


def overload_for(operator: Operator, args: tuple[Any, ...]) -> OpOverload:
    """Return the overload to call with these arguments: one that takes numbers where there are numbers.

    `fmod.Scalar_out` wraps its number in a tensor and calls `fmod.Tensor_out`, but PyTorch gives a kernel in Python the
    number itself, which `fmod.Tensor_out` does not take.
    """
    numbers = tuple(i for i, argument in enumerate(args) if isinstance(argument, (bool, int, float, complex)))
    return _taking_numbers(operator.overload, numbers) if numbers else operator.overload


@functools.cache
def _taking_numbers(op: OpOverload, numbers: tuple[int, ...]) -> OpOverload:
    ours = [(a.name, str(a.type)) for a in schema_of(op).arguments]
    wrapped = [i for i in numbers if i < len(ours) and ours[i][1] in ("Tensor", "Optional[Tensor]")]
    namespace, name = schema_of(op).name.split("::")
    if not wrapped or takes_numbers_as_tensors(name):  # a form for numbers would check less: `add.Scalar_out`
        return op
    for i in wrapped:
        ours[i] = (ours[i][0], "number")
    packet = getattr(getattr(torch.ops, namespace), name)
    for candidate in (getattr(packet, overload_name) for overload_name in packet.overloads()):
        theirs = [(a.name, str(a.type).replace("Optional[number]", "number")) for a in schema_of(candidate).arguments]
        if theirs == ours and form_of(candidate) is form_of(op):
            return candidate  # type: ignore[no-any-return]
    return op


def _names_dtype(op: OpOverload | None) -> bool:
    return op is not None and any(argument.name == "dtype" for argument in schema_of(op).arguments)


def _reordered(op: OpOverload, functional: OpOverload | None) -> tuple[int, ...]:
    ours = [a.name for a in schema_of(op).arguments]
    theirs = [a.name for a in schema_of(functional).arguments] if functional is not None else ours
    return tuple(map(ours.index, theirs)) if ours != theirs and set(ours) == set(theirs) else ()


def _lost_defaults(op: OpOverload, functional: OpOverload | None) -> tuple[tuple[int, str, object], ...]:
    if functional is None:
        return ()
    required = {a.name for a in schema_of(functional).arguments if not a.has_default_value()}
    return tuple(
        (position, a.name, a.default_value)
        for position, a in enumerate(schema_of(op).arguments)
        if a.has_default_value() and a.name in required
    )


def _functional_sibling(op: OpOverload, form: Form) -> OpOverload | None:
    if form is Form.FUNCTIONAL:
        return op
    namespace, packet_name = schema_of(op).name.split("::")
    operators = getattr(torch.ops, namespace)
    if form is Form.INPLACE:
        known = _SIBLINGS.get(f"{packet_name}.{overload_name_of(op)}")
        if known is not None:
            return resolve(f"{namespace}::{known}")
        packet = getattr(operators, packet_name.removesuffix("_"), None)
        if packet is None:
            packet = getattr(operators, f"{packet_name.removesuffix('_')}_functional", None)
        overload = getattr(packet, overload_name_of(op), None) if packet is not None else None
        return overload if overload is not None and form_of(overload) is Form.FUNCTIONAL else None
    if form is Form.OUT:
        wanted = [(a.name, str(a.type)) for a in schema_of(op).arguments if not a.is_out]
        packet = getattr(operators, packet_name)
        for overload_name in packet.overloads():
            candidate = getattr(packet, overload_name)
            if form_of(candidate) is not Form.FUNCTIONAL:
                continue
            theirs = [(a.name, str(a.type)) for a in schema_of(candidate).arguments]
            if theirs[: len(wanted)] == wanted and {name for name, _ in theirs[len(wanted) :]} <= {
                "dtype", "layout", "device", "pin_memory", "memory_format",
            }:  # fmt: skip
                return candidate
    return None


def read_by(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Any]) -> list[Any]:
    """Return the operands of the tensors that a call writes to, in the order of its results."""
    if operator.written == (0,):  # almost every call
        return operands[:1] if isinstance(args[0], torch.Tensor) else operands[: len(args[0])]
    if operator.written == _FIRST[: len(operator.written)]:
        given = [args[where] for where in operator.written]  # type: ignore[index]
        if not any(map(isinstance, given, repeat(torch.Tensor))) and None not in given:
            return operands[: sum(map(len, given))]
    found: dict[int | str, list[Any]] = {}
    place = 0
    arguments: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for where, argument in arguments:
        each = argument if isinstance(argument, (list, tuple)) else (argument,)
        count = sum(isinstance(tensor, torch.Tensor) for tensor in each)
        found[where] = operands[place : place + count]
        place += count
    return [operand for where in operator.written for operand in found.get(where, ())]


def written_by(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a call writes to, in the order of its results."""
    targets: list[torch.Tensor] = []
    for where in operator.written:
        target = args[where] if isinstance(where, int) else kwargs.get(where)
        if isinstance(target, torch.Tensor):
            targets.append(target)
        elif target is not None:
            targets += target
    return targets
