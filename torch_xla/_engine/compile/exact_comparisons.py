"""Compare and convert subnormal numbers exactly in programs for the CPU.

XLA:CPU runs with the processor's flags that read a subnormal number as zero and write zero for one. Comparisons,
extremes and conversions of floats obey them too: `x > 0` of 1e-40 is false, and the maximum of 1e-40 and -1 is 0. No
option of XLA changes that. Instructions on integers know no such flags, so this pass rewrites what compares or converts
floats into operations on their bits. Results of arithmetic are zero where they would be subnormal, so what compares
them stays as it is, and so do extremes that arithmetic alone reads. float16 is computed in float32, in which its
subnormal numbers are normal.

GPUs do not flush. TPUs do, and keep their own comparisons.

A key is the integer of the width of a float that has its order:

    key = bits if bits >= 0 else least - bits

Both zeros have the key 0, and NaN has keys beyond those of the infinities.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from .rewrite_barriers import MOVES, EditedModule, filled, text

# XLA:CPU computes their results with instructions that flush. Of others, such as `tanh`, small numbers are the results.
_FLUSHED = frozenset(
    f"stablehlo.{name}"
    for name in ("add", "subtract", "multiply", "divide", "log", "logistic", "dot_general", "convolution")
)
# Their results are one of their operands.
_CHOICES = frozenset(f"stablehlo.{name}" for name in ("select", "maximum", "minimum"))
# Operations that keep all bits of a number but its sign.
_KEPT = MOVES | {"stablehlo.abs", "stablehlo.negate"}
# Operations whose results are elements of their first operands, of so many of these.
_PLACED = {name: 1 for name in (*_KEPT, "stablehlo.reduce_precision", "stablehlo.reverse")} | {
    "stablehlo.gather": 1, "stablehlo.dynamic_slice": 1, "stablehlo.dynamic_update_slice": 2, "stablehlo.pad": 2,
    "stablehlo.concatenate": None,
}  # fmt: skip
# XLA takes an operation with one of these numbers out.
_NEUTRAL = (0.0, 1.0, -1.0)
# Operations that take a subnormal operand for zero.
_FLUSHING = _FLUSHED | {f"stablehlo.{name}" for name in ("exponential", "sqrt", "rsqrt")}
# Devices exchange values in operations that know only plain reductions.
_COLLECTIVES = ("stablehlo.all_reduce", "stablehlo.reduce_scatter")


class _Float:
    """A float type whose subnormal numbers XLA:CPU flushes, and the integers that hold its bits."""

    def __init__(self, width: int, fraction: int) -> None:
        self.width, self.fraction = width, fraction
        self.least = -(1 << (width - 1))
        self.infinity = ((1 << (width - 1 - fraction)) - 1) << fraction

    def like(self, kind: object) -> Any:
        """Return the type of integers of the shape of `kind`."""
        return _with_element(kind, ir.IntegerType.get_signless(self.width))

    def bits_of(self, number: float) -> int:
        """Return the bits of a number without its sign. float64 has those of all."""
        wide = int(np.float64(abs(number)).view(np.int64))
        if self.width == 64:
            return wide
        narrow = int(np.float32(abs(number)).view(np.int32))
        return narrow >> (32 - self.width)


_FLOATS = {"bf16": _Float(16, 7), "f32": _Float(32, 23), "f64": _Float(64, 52)}


class _Comparisons:
    """The effects of a module's operations on subnormal numbers."""

    def __init__(self, module: EditedModule) -> None:
        self._module = module
        self._flushed: set[Any] = set()  # values that are known to be
        self.constant = module.constant

    def is_flushed(self, value: object) -> bool:
        """Return whether arithmetic of XLA:CPU computes `value`, or it is a number that is not subnormal."""
        return self._holds_for_all(value, self._come_from, self._flushed)

    def is_read_as_zero(self, value: object) -> bool:
        """Return whether all that reads `value` takes a subnormal number for zero."""
        return self._holds_for_all(value, self._go_to, set())

    def _holds_for_all(self, value: object, following: Callable[[Any], list[Any] | None], known: set[Any]) -> bool:
        """Return whether `following` gives a list, not `None`, for a value and for each value in such a list.

        If so, all of them are added to the `known` values.
        """
        seen, left = {value}, [value]
        while left:
            each = left.pop()
            if each in known:
                continue
            more = following(each)
            if more is None:
                return False
            left.extend(new for new in more if new not in seen)
            seen.update(more)
        known |= seen
        return True

    def _come_from(self, value: Any) -> list[Any] | None:
        """Return the values that must be flushed if `value` is; `None` if it is not."""
        owner = value.owner
        if isinstance(owner, ir.Block):
            function, place = owner.owner, ir.BlockArgument(value).arg_number
            calls = self._calls_of(function) if function.operation.name == "func.func" else []
            return [call.operands[place] for call in calls] or None
        operands = [*owner.operands]
        if owner.name in _PLACED:
            return operands[: _PLACED[owner.name]]
        if owner.name == "stablehlo.case":
            ends = [[*branch.blocks[0].operations][-1].operation for branch in owner.regions]
            return [end.operands[ir.OpResult(value).result_number] for end in ends]
        if owner.name == "func.call":
            last = [*self._body_of(owner).operations][-1].operation
            return [last.operands[ir.OpResult(value).result_number]]
        if owner.name == "stablehlo.convert":
            kind = ir.RankedTensorType(operands[0].type).element_type
            if str(kind) in ("f32", "bf16"):
                return operands
            is_flushed = str(kind) == "f16" or isinstance(kind, ir.IntegerType)
        elif owner.name == "stablehlo.constant":
            number, held = self.constant(value), _float_of(value)
            is_flushed = number is not None and not (held and 0 < held.bits_of(number) < 1 << held.fraction)
        elif owner.name == "stablehlo.reduce" and len(operands) == 2:
            sizes = (math.prod(ir.RankedTensorType(each.type).shape) for each in (operands[0], value))
            if not _is_sum(owner) or len({*sizes}) == 1:  # XLA takes out a sum of one element
                return operands[:1]
            is_flushed = True
        elif owner.name == "stablehlo.scatter" and len(operands) == 3 and _is_sum(owner):
            return operands[:1]
        elif owner.name in _CHOICES:
            return [each for each in operands if each.type == value.type]
        else:
            is_flushed = owner.name in _FLUSHED and not self._has_neutral(operands)
        return [] if is_flushed else None

    def _go_to(self, value: Any) -> list[Any] | None:
        """Return the values that must be read as zero if `value` is; `None` if one of its readers sees its bits."""
        found = []
        for use in value.uses:
            reader, place = use.owner.operation, use.operand_number
            name = reader.name
            if name in _KEPT or (name in _CHOICES and (name != "stablehlo.select" or place)):
                found.append(reader.results[0])
            elif name == "func.call":
                found.append(self._body_of(reader).arguments[place])
            elif name == "func.return" and (calls := self._calls_of(reader.parent)):
                found.extend(call.results[place] for call in calls)
            elif name == "stablehlo.compare":
                held, number = _float_of(value), self.constant(reader.operands[1 - place])
                if held is None or number is None or held.bits_of(number) < 1 << held.fraction:
                    return None
            elif name not in _FLUSHING or self._has_neutral(reader.operands):
                return None
        return found

    def _calls_of(self, function: Any) -> list[Any]:
        return self._module.calls.get(text(function.attributes["sym_name"]), [])

    def _body_of(self, call: Any) -> Any:
        return self._module.functions[text(call.attributes["callee"])].regions[0].blocks[0]

    def _has_neutral(self, operands: Any) -> bool:
        return any(self.constant(each) in _NEUTRAL for each in operands)


def compare_exactly(module: Any) -> None:
    """Rewrite comparisons, extremes, signs and conversions of a module of StableHLO so that they read bits."""
    # Reductions first: an extreme in the body of one is no operation of its own.
    for rules in (_REDUCTIONS, _RULES):
        edited, found = EditedModule.reading(module, rules)
        held = _Comparisons(edited)
        replaced = []
        with module.context:
            for rule, operation in found:
                if not _is_rewritten(operation):
                    continue
                with operation.location, ir.InsertionPoint(operation):
                    result = rule(held, operation)
                if result is not None:
                    operation.results[0].replace_all_uses_with(result)
                    replaced.append(operation)
            for operation in reversed(replaced):  # not before: what is noted of a value goes by its address
                operation.erase()


def _is_sum(operation: Any) -> bool:
    """Return whether a reduction or a scatter adds."""
    return bool([*operation.regions[0].blocks[0].operations][0].operation.name == "stablehlo.add")


def _is_rewritten(operation: Any) -> bool:
    """Return whether an operation is one whose uses the pass may replace."""
    parent = operation.parent
    if parent is not None and parent.name in _REDUCTIONS and len([*parent.regions[0].blocks[0].operations]) == 2:
        return False  # the first round has left this reduction as it is
    return (
        len(operation.results) == 1
        and ir.RankedTensorType(operation.operands[0].type).has_static_shape
        and (parent is None or parent.name not in _COLLECTIVES)
    )


def _compare(module: _Comparisons, operation: Any) -> Any:
    left, right = operation.operands
    direction = str(operation.attributes["comparison_direction"]).split()[-1].rstrip(">")
    kind = operation.attributes["compare_type"] if "compare_type" in operation.attributes else ""
    if left == right or "TOTALORDER" in str(kind):
        return None
    if _is_complex(left.type):
        parts = [(part(left), part(right)) for part in (_real, _imag)]
        joined = stablehlo.and_ if direction == "EQ" else stablehlo.or_
        compared = [_compared(module, *pair, direction) for pair in parts]
        plain = [_native(*pair, direction) for pair in parts]
        return joined(*(each if each is not None else other for each, other in zip(compared, plain, strict=True)))
    return _compared(module, left, right, direction)


def _compared(module: _Comparisons, left: object, right: object, direction: str) -> Any:
    """Return an exact comparison of two operands; `None` if the plain one is."""
    held = _float_of(left)
    if held is None or (module.is_flushed(left) and module.is_flushed(right)):
        return None
    for value, number, turned in (
        (left, module.constant(right), direction),
        (right, module.constant(left), _TURNED[direction]),
    ):
        if number is not None:
            return _compared_with(held, value, number, turned)
    if direction in ("EQ", "NE"):
        joined = stablehlo.and_ if direction == "EQ" else stablehlo.or_
        return joined(_native(left, right, direction), _native(_key(held, left), _key(held, right), direction))
    # Flushed, what is less is less or equal; and NaN is neither.
    return stablehlo.and_(
        _native(left, right, direction[0] + "E"), _native(_key(held, left), _key(held, right), direction)
    )


def _compared_with(held: _Float, value: object, number: float, direction: str) -> Any:
    """Compare `value` with one number: by a range of bits, or of keys."""
    size = held.bits_of(number)
    if direction in ("EQ", "NE"):
        if np.isnan(number) or size >= 1 << held.fraction:
            return None
        if size == 0:
            # 6 times the bits is 0 for those of both zeros. LLVM turns a test of all bits but the sign into a plain
            # comparison of floats.
            return _native(
                stablehlo.multiply(_bits(held, value), _filled(held, value, 6)), _filled(held, value, 0), direction
            )
        return _native(_key(held, value), _filled(held, value, -size if number < 0 else size), direction)
    # Of other numbers, too: LLVM makes an extreme, which flushes, of a choice between `value` and the number.
    if np.isnan(number):
        return None
    key = -size if np.signbit(number) else size
    is_strict = direction[1] == "T"
    if direction[0] == "G":
        low, high = key + is_strict, held.infinity
    else:
        low, high = -held.infinity, key - is_strict
    if low > 0:  # of positive numbers the bits are the keys
        bits = _bits(held, value)
    elif high < 0:
        bits, low, high = _bits(held, value), held.least - high, held.least - low
    else:
        bits = _key(held, value)
    if low > high:
        return None  # beyond infinity: never
    return stablehlo.and_(
        _native(bits, _filled(held, value, low), "GE"), _native(bits, _filled(held, value, high), "LE")
    )


def _extreme(module: _Comparisons, operation: Any) -> Any:
    left, right = operation.operands
    if module.is_read_as_zero(operation.results[0]):
        return None
    return _extreme_of(module, left, right, "GE" if operation.name == "stablehlo.maximum" else "LE")


def _extreme_of(module: _Comparisons, left: Any, right: Any, direction: str) -> Any:
    """Return the left operand where its key is as far, or it is NaN; the right one elsewhere, or where it is NaN."""
    held = _float_of(left)
    if held is None or (module.is_flushed(left) and module.is_flushed(right)):
        return None
    is_left = _native(_ordered(held, left), _ordered(held, right), direction)
    number = module.constant(right)
    if number is None or np.isnan(number):
        is_left = stablehlo.and_(is_left, _native(right, right, "EQ"))
    is_left = stablehlo.or_(is_left, _native(left, left, "NE"))
    return stablehlo.select(is_left, left, right)


def _clamp(module: _Comparisons, operation: Any) -> Any:
    low, value, high = operation.operands
    if _float_of(value) is None or module.is_flushed(value) or module.is_read_as_zero(operation.results[0]):
        return None
    low, high = (
        each if each.type == value.type else stablehlo.broadcast_in_dim(value.type, each, []) for each in (low, high)
    )
    least = _extreme_of(module, value, low, "GE")
    return _extreme_of(module, least, high, "LE")


def _sign(module: _Comparisons, operation: Any) -> Any:
    value = operation.operands[0]
    held = _float_of(value)
    if held is None or module.is_flushed(value):
        return None
    above, below = (_compared_with(held, value, 0.0, direction) for direction in ("GT", "LT"))
    one, minus_one = (filled(value.type, number) for number in (1.0, -1.0))
    return stablehlo.select(above, one, stablehlo.select(below, minus_one, value))


def _reduce(module: _Comparisons, operation: Any) -> Any:
    """Return the extreme of floats as that of integers with their order, in which NaN comes last."""
    bodies = [*operation.regions[0].blocks[0].operations]
    if len(bodies) != 2 or bodies[0].operation.name not in ("stablehlo.maximum", "stablehlo.minimum"):
        return None
    values, start = operation.operands
    held = _float_of(values)
    body = bodies[0].operation
    if held is None or module.is_flushed(values) or module.is_read_as_zero(operation.results[0]):
        return None
    if [*body.operands] != [*operation.regions[0].blocks[0].arguments]:
        return None
    last = ~held.least if body.name == "stablehlo.maximum" else held.least
    keys = []
    for each in (values, start):
        is_nan = _native(each, each, "NE")
        keys.append(stablehlo.select(is_nan, _filled(held, each, last), _ordered(held, each)))
    result = operation.results[0].type
    attributes = {name: operation.attributes[name] for name in operation.attributes}
    reduced = ir.Operation.create(
        operation.name, results=[held.like(result)], operands=keys, attributes=attributes, regions=1
    )
    single = held.like(start.type)
    block = reduced.regions[0].blocks.append(single, single)
    with ir.InsertionPoint(block):
        far = stablehlo.maximum if body.name == "stablehlo.maximum" else stablehlo.minimum
        stablehlo.return_([far(*block.arguments)])
    return stablehlo.bitcast_convert(result, _turned(held, reduced.results[0]))


def _convert(module: _Comparisons, operation: Any) -> Any:
    value, kind = operation.operands[0], operation.results[0].type
    if _is_complex(value.type):
        if not _is_complex(kind):
            return None
        of_part = _with_element(kind, ir.ComplexType(ir.RankedTensorType(kind).element_type).element_type)
        parts = [_converted(module, part(value), of_part) for part in (_real, _imag)]
        return None if any(each is None for each in parts) else stablehlo.complex(*parts)
    if _is_complex(kind):
        part = _with_element(kind, ir.ComplexType(ir.RankedTensorType(kind).element_type).element_type)
        real = _converted(module, value, part)
        return None if real is None else stablehlo.complex(real, filled(part, 0.0))
    if _is_narrowing(value.type, kind) and module.is_read_as_zero(operation.results[0]):
        return None
    return _converted(module, value, kind)


def _is_narrowing(source: Any, target: Any) -> bool:
    return tuple(str(ir.RankedTensorType(each).element_type) for each in (source, target)) == ("f64", "f32")


def _converted(module: _Comparisons, value: Any, kind: Any) -> Any:
    """Return an exact conversion to a type of real numbers; `None` if the plain one is."""
    held = _float_of(value)
    if held is None:
        return None
    source, target = (str(ir.RankedTensorType(each).element_type) for each in (value.type, kind))
    if target == "i1":
        return _compared_with(held, value, 0.0, "NE")
    if source == "f64" and target in ("f32", "bf16"):
        narrow = _narrowed(value, _with_element(kind, ir.F32Type.get()))
        return narrow if target == "f32" else stablehlo.convert(kind, narrow)
    if target == "f64" and source != "f64" and not module.is_flushed(value):
        if source == "bf16":
            value = stablehlo.convert(_with_element(kind, ir.F32Type.get()), value)
        return _widened(value, kind)
    return None


def _widened(value: Any, kind: Any) -> Any:
    """Convert float32 to float64. A subnormal number is a small integer times the least of them."""
    held = _FLOATS["f32"]
    bits = _bits(held, value)
    magnitude = stablehlo.and_(bits, _filled(held, value, ~held.least))
    negative = _native(bits, _filled(held, value, 0), "LT")
    whole = stablehlo.convert(kind, stablehlo.select(negative, stablehlo.negate(magnitude), magnitude))
    is_subnormal = stablehlo.and_(
        _native(magnitude, _filled(held, value, 0), "GT"),
        _native(magnitude, _filled(held, value, 1 << held.fraction), "LT"),
    )
    exact = stablehlo.multiply(whole, filled(kind, 2.0**-149))
    return stablehlo.select(is_subnormal, exact, stablehlo.convert(kind, value))


def _narrowed(value: Any, kind: Any) -> Any:
    """Convert float64 to float32. Below the normal numbers, the bits are the number of the least ones, rounded to
    even.
    """
    held, wide = _FLOATS["f32"], _FLOATS["f64"]
    size = stablehlo.abs(value)
    count = stablehlo.round_nearest_even(stablehlo.multiply(size, filled(value.type, 2.0**149)))
    bits = stablehlo.convert(held.like(kind), count)
    negative = _native(_bits(wide, value), _filled(wide, value, 0), "LT")
    sign = stablehlo.select(negative, _filled(held, kind, held.least), _filled(held, kind, 0))
    small = stablehlo.bitcast_convert(kind, stablehlo.or_(bits, sign))
    is_small = _native(size, filled(value.type, 2.0**-126), "LT")
    return stablehlo.select(is_small, small, stablehlo.convert(kind, value))


def _float_of(value: Any) -> _Float | None:
    return _FLOATS.get(str(ir.RankedTensorType(value.type).element_type))


def _bits(held: _Float, value: Any) -> Any:
    return stablehlo.bitcast_convert(held.like(value.type), value)


def _key(held: _Float, value: object) -> Any:
    bits = _bits(held, value)
    negative = _native(bits, _filled(held, value, 0), "LT")
    return stablehlo.select(negative, stablehlo.subtract(_filled(held, value, held.least), bits), bits)


def _ordered(held: _Float, value: object) -> Any:
    """Return integers of the order of floats, in which -0 comes before 0."""
    return _turned(held, _bits(held, value))


def _turned(held: _Float, bits: Any) -> Any:
    """Return the bits of a float from its place in that order, or the place from the bits."""
    sign = stablehlo.shift_right_arithmetic(bits, _filled(held, bits, held.width - 1))
    return stablehlo.xor(bits, stablehlo.and_(sign, _filled(held, bits, ~held.least)))


def _native(left: Any, right: Any, direction: str) -> Any:
    return stablehlo.compare(left, right, stablehlo.ComparisonDirectionAttr.get(direction))


def _filled(held: _Float, like: object, number: int) -> Any:
    """Return integers of the width of a float that all are `number`."""
    kind = ir.RankedTensorType(held.like(like.type if isinstance(like, ir.Value) else like))
    attribute = ir.IntegerAttr.get(kind.element_type, number)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(kind, attribute))


def _with_element(kind: Any, element: Any) -> Any:
    return ir.RankedTensorType.get(ir.RankedTensorType(kind).shape, element)


def _is_complex(kind: Any) -> bool:
    return str(ir.RankedTensorType(kind).element_type).startswith("complex")


def _real(value: Any) -> Any:
    return stablehlo.real(value)


def _imag(value: Any) -> Any:
    return stablehlo.imag(value)


_TURNED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}

_Rule = Callable[[_Comparisons, Any], Any]
_REDUCTIONS: dict[str, _Rule] = {"stablehlo.reduce": _reduce, "stablehlo.reduce_window": _reduce}
_RULES: dict[str, _Rule] = {
    "stablehlo.compare": _compare,
    "stablehlo.maximum": _extreme,
    "stablehlo.minimum": _extreme,
    "stablehlo.clamp": _clamp,
    "stablehlo.sign": _sign,
    "stablehlo.convert": _convert,
}
