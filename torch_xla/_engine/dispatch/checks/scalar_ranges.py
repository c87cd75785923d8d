"""Refuse scalars that a dtype cannot hold, as the CPU does: `bytes.fill_(300)`, `floats.clamp(max=1e39)`.

A plan does not depend on the values of its numbers. So the numbers of each call are checked, if one of the dtypes of
the call cannot hold all numbers of their kind. Numbers that PyTorch lets wrap around, as in `bytes + 300`, are not
checked, and neither are comparisons, which accept any number. A complex number is a part of a plan's key, and is
checked with the plan.

The order of a norm without elements is checked too: some orders are the minimum or the maximum of the elements. So are
the numbers that an operator refuses in any dtype, such as a negative `p` of `cdist`.
"""

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from operator import le
from typing import Any

import torch

from ...compat.names.torch import pytree, schema_of
from ...lowering.views.storage_access import PLACES
from ...tensor.host_known_values import known_numbers
from ..op_schema import Operator
from . import cpu_errors

_NUMBERS = ("number", "Optional[number]", "List[number]")
# Operators whose `float` arguments become numbers of the result's dtype too.
_CONVERTED = {"logit": "eps", "logit_backward": "eps"}
_NORMS = frozenset(("linalg_vector_norm", "norm", "foreach_norm"))
# Operators that refuse some numbers whatever the dtype: their arguments, and from which number on all are valid.
_REFUSING: dict[str, tuple[tuple[str, ...], float]] = {
    "_cdist_forward": (("p",), 0.0),
    "celu": (("alpha",), sys.float_info.min),
    "histc": (("min", "max"), math.inf),  # no number for certain: one decides about the other
    "huber_loss": (("delta",), sys.float_info.min),
    "huber_loss_backward": (("delta",), sys.float_info.min),
    "renorm": (("p", "maxnorm"), sys.float_info.min),
    "softshrink": (("lambd",), 0.0),
}
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_FLOATS = frozenset((torch.float32, torch.bfloat16, torch.complex64))
# What has no infinity, or no NaN.
_FINITE = frozenset((torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu))
# These do not hold every integer either.
_NARROW = _FINITE | {torch.float8_e5m2, torch.float16, torch.complex32}
_ENDLESS = frozenset((math.inf, -math.inf))
_FLOAT = frozenset((float,))
_KINDS = frozenset((int, float, complex))
_REMEMBERED = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers that every dtype of a call holds. Unsigned integers take negative ones too, but no negative float."""

    least: float
    most: float
    is_unsigned: bool
    is_endless: bool  # every dtype has infinities and NaN
    places: tuple[tuple[int, str], ...]  # of the numbers that are given: position and name of the argument
    taken: set[tuple[object, ...]] = field(
        default_factory=set
    )  # numbers beyond the limits, each in its place, that the CPU took

    def holds(self, number: Any) -> bool:
        """Return whether `number` is valid for certain, so that the CPU need not check it."""
        if number.__class__ is complex:
            return True  # that was settled with the plan
        fits: bool = self.least <= number <= self.most
        if not fits:
            return self.is_endless and not math.isfinite(number)
        return not (self.is_unsigned and number < 0 and number.__class__ is float)


def limits_of(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], dtypes: Iterable[torch.dtype]
) -> Limits | None:
    """Return the limits for the numbers of calls like this one; `None` if any number is valid.

    Raises the CPU's error for a complex number.
    """
    arguments, where = schema_of(operator.overload).arguments, PLACES.get(operator.overload, {})
    if bounded := tuple((i, a.name) for i, a in enumerate(arguments) if where.get(a.name)):
        count = args[1][args[2]]  # the size of the dimension: `input_sizes`, `dim`
        return Limits(-count, count - 1, False, False, bounded)
    name = schema_of(operator.overload).name.partition("::")[2]
    if name.rstrip("_") in _REFUSING:
        refusing, least = _REFUSING[name.rstrip("_")]
        given_places = tuple((i, a.name) for i, a in enumerate(arguments) if a.name in refusing)
        return Limits(least, sys.float_info.max, False, False, tuple(_given(given_places, args, kwargs)))
    converted = _CONVERTED.get(name.rstrip("_"))
    places = tuple((i, a.name) for i, a in enumerate(arguments) if str(a.type) in _NUMBERS or a.name == converted)
    every = _numbers(places, args, kwargs)
    if any(number.__class__ is complex for number in every):
        cpu_errors.refuse_if_the_cpu_does(operator, args, kwargs)
    given = [number for number in every if number.__class__ is not complex]
    name = name.strip("_")
    if not given or name in _COMPARISONS:
        return None
    given_places = tuple(_given(places, args, kwargs))
    if name in _NORMS and not all(tensor.numel() for tensor in pytree.tree_leaves(args[0])):
        return Limits(0, sys.float_info.max, False, False, given_places)  # the least and the greatest of nothing
    has_float = any(isinstance(number, float) for number in given)
    wraps = not name.startswith(("clamp", "hardtanh"))  # since 2.15 they refuse negative bounds of unsigned integers
    limits: list[tuple[float, float]] = []
    is_unsigned = False
    is_endless = True
    for dtype in set(dtypes):
        if dtype in _NARROW or (dtype in _FLOATS and has_float and (converted or "backward" not in name)):
            info = torch.finfo(dtype)
            limits.append((info.tiny if dtype is torch.float8_e8m0fnu else -info.max, info.max))
            is_endless &= dtype not in _FINITE
        elif dtype is not torch.bool and not (dtype.is_floating_point or dtype.is_complex):
            most = torch.iinfo(dtype).max
            is_endless = False
            is_unsigned |= not dtype.is_signed
            if name == "pow":
                limits.append((0, most))  # no integer has a negative power
            elif dtype is not torch.int64 or has_float or max(given) >= 1 << 63:
                limits.append((-most if wraps and not dtype.is_signed else torch.iinfo(dtype).min, most))
    if not limits:
        return None
    least, greatest = max(least for least, _ in limits), min(most for _, most in limits)
    return Limits(least, greatest, is_unsigned, is_endless, given_places)


def holds_number(dtype: torch.dtype, tensor: object) -> bool:
    """Return whether a dtype holds the number of a tensor that PyTorch reads as one, as far as the host knows it.

    It may deny that of numbers that the CPU takes.
    """
    known = None
    if isinstance(tensor, torch.Tensor):
        known = tensor.detach().resolve_conj() if tensor.device.type == "cpu" else known_numbers(tensor)
    if known is None or math.prod(known.shape) != 1 or dtype is torch.bool:
        return True
    number = known.item()
    if isinstance(number, complex):
        if number.imag and not dtype.is_complex:
            return False
        number = number.real
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max
    return abs(number) <= torch.finfo(dtype).max or (dtype not in _FINITE and not math.isfinite(number))


def _given(
    places: Iterable[tuple[int, str]], args: tuple[object, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[int, str]]:
    """Yield those of the `places` that have a number."""
    return (place for place in places if _numbers((place,), args, kwargs))


def _numbers(places: tuple[tuple[int, str], ...], args: tuple[object, ...], kwargs: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for position, name in places:
        value = args[position] if position < len(args) else kwargs.get(name)
        found += value if isinstance(value, (list, tuple)) else (value,)
    return [number for number in found if number.__class__ in _KINDS]


def check(limits: Limits, operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
    """Raise the CPU's error for the numbers of a call."""
    least, most, given = limits.least, limits.most, len(args)
    for position, name in limits.places:
        number = args[position] if position < given else kwargs[name]
        if number.__class__ is list and set(map(type, number)) == _FLOAT:
            if all(map(le, repeat(least), number)) and all(map(le, number, repeat(most))):
                continue
            break
        if number.__class__ is not float or not (least <= number <= most or (limits.is_endless and number in _ENDLESS)):
            break
    else:
        if not limits.is_unsigned:
            return  # all but a few calls: the rest would cost a third of a call
    numbers = _numbers(limits.places, args, kwargs)
    if all(limits.holds(number) for number in numbers):
        return
    beyond = tuple(None if limits.holds(number) else number for number in numbers)
    if beyond not in limits.taken:
        cpu_errors.refuse_but_for_zeros(operator, args, kwargs)
        if len(limits.taken) < _REMEMBERED:
            limits.taken.add(beyond)
