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

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from .edited_module import EditedModule, filled
from .subnormal_flow import FLOATS, Float, SubnormalFlow, float_of, with_element

# Devices exchange values in operations that know only plain reductions.
_COLLECTIVES = ("stablehlo.all_reduce", "stablehlo.reduce_scatter")


def compare_exactly(module: ir.Module) -> None:
    """Rewrite comparisons, extremes, signs, floors and conversions of a module of StableHLO so that they read bits."""
    # Reductions first: an extreme in the body of one is no operation of its own.
    for rules in (_REDUCTIONS, _RULES):
        edited, found = EditedModule.reading(module, rules)
        held = SubnormalFlow(edited)
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


def _is_rewritten(operation: ir.Operation) -> bool:
    """Return whether an operation is one whose uses the pass may replace."""
    parent = operation.parent
    if parent is not None and parent.name in _REDUCTIONS and len([*parent.regions[0].blocks[0].operations]) == 2:
        return False  # the first round has left this reduction as it is
    return (
        len(operation.results) == 1
        and ir.RankedTensorType(operation.operands[0].type).has_static_shape
        and (parent is None or parent.name not in _COLLECTIVES)
    )


def _compare(module: SubnormalFlow, operation: ir.Operation) -> ir.Value | None:
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


def _compared(module: SubnormalFlow, left: ir.Value, right: ir.Value, direction: str) -> ir.Value | None:
    """Return an exact comparison of two operands; `None` if the plain one is."""
    held = float_of(left)
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


def _compared_with(held: Float, value: ir.Value, number: float, direction: str) -> Any:
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


def _extreme(module: SubnormalFlow, operation: ir.Operation) -> ir.Value | None:
    left, right = operation.operands
    if module.is_read_as_zero(operation.results[0]):
        return None
    return _extreme_of(module, left, right, "GE" if operation.name == "stablehlo.maximum" else "LE")


def _extreme_of(module: SubnormalFlow, left: ir.Value, right: ir.Value, direction: str) -> Any:
    """Return the left operand where its key is as far, or it is NaN; the right one elsewhere, or where it is NaN."""
    held = float_of(left)
    if held is None or (module.is_flushed(left) and module.is_flushed(right)):
        return None
    is_left = _native(_ordered(held, left), _ordered(held, right), direction)
    number = module.constant(right)
    if number is None or np.isnan(number):
        is_left = stablehlo.and_(is_left, _native(right, right, "EQ"))
    is_left = stablehlo.or_(is_left, _native(left, left, "NE"))
    return stablehlo.select(is_left, left, right)


def _clamp(module: SubnormalFlow, operation: ir.Operation) -> ir.Value | None:
    low, value, high = operation.operands
    if float_of(value) is None or module.is_flushed(value) or module.is_read_as_zero(operation.results[0]):
        return None
    low, high = (
        each if each.type == value.type else stablehlo.broadcast_in_dim(value.type, each, []) for each in (low, high)
    )
    least = _extreme_of(module, value, low, "GE")
    return _extreme_of(module, least, high, "LE")


def _sign(module: SubnormalFlow, operation: ir.Operation) -> ir.Value | None:
    value = operation.operands[0]
    held = float_of(value)
    if held is None or module.is_flushed(value):
        return None
    above, below = (_compared_with(held, value, 0.0, direction) for direction in ("GT", "LT"))
    one, minus_one = (filled(value.type, number) for number in (1.0, -1.0))
    return stablehlo.select(above, one, stablehlo.select(below, minus_one, value))


def _floor(module: SubnormalFlow, operation: ir.Operation) -> ir.Value | None:
    """Return -1 for what is little below zero, which would count as zero."""
    held = float_of(operation.operands[0])
    return None if held is None else _rounded(module, operation, held, held.least, -1.0)


def _ceil(module: SubnormalFlow, operation: ir.Operation) -> ir.Value | None:
    """Return 1 for what is little above zero."""
    held = float_of(operation.operands[0])
    return None if held is None else _rounded(module, operation, held, 0, 1.0)


def _rounded(module: SubnormalFlow, operation: ir.Operation, held: Float, zero: int, number: float) -> Any:
    """Return `number` for the subnormal numbers of one sign, which follow the bits of its `zero`."""
    value = operation.operands[0]
    if module.is_flushed(value):
        return None
    bits = _bits(held, value)
    last = zero + (1 << held.fraction) - 1
    is_small = stablehlo.and_(
        _native(bits, _filled(held, value, zero + 1), "GE"), _native(bits, _filled(held, value, last), "LE")
    )
    rounded = stablehlo.floor(value) if number < 0 else stablehlo.ceil(value)
    return stablehlo.select(is_small, filled(value.type, number), rounded)


def _reduce(module: SubnormalFlow, operation: ir.Operation) -> ir.Value | None:
    """Return the extreme of floats as that of integers with their order, in which NaN comes last."""
    bodies = [*operation.regions[0].blocks[0].operations]
    if len(bodies) != 2 or bodies[0].operation.name not in ("stablehlo.maximum", "stablehlo.minimum"):
        return None
    values, start = operation.operands
    held = float_of(values)
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


def _convert(module: SubnormalFlow, operation: ir.Operation) -> ir.Value | None:
    value, kind = operation.operands[0], operation.results[0].type
    if _is_complex(value.type):
        if not _is_complex(kind):
            return None
        of_part = with_element(kind, ir.ComplexType(ir.RankedTensorType(kind).element_type).element_type)
        parts = [_converted(module, part(value), of_part) for part in (_real, _imag)]
        return None if any(each is None for each in parts) else stablehlo.complex(*parts)
    if _is_complex(kind):
        part = with_element(kind, ir.ComplexType(ir.RankedTensorType(kind).element_type).element_type)
        real = _converted(module, value, part)
        return None if real is None else stablehlo.complex(real, filled(part, 0.0))
    if _is_narrowing(value.type, kind) and module.is_read_as_zero(operation.results[0]):
        return None
    return _converted(module, value, kind)


def _is_narrowing(source: ir.Type, target: ir.Type) -> bool:
    return tuple(str(ir.RankedTensorType(each).element_type) for each in (source, target)) == ("f64", "f32")


def _converted(module: SubnormalFlow, value: ir.Value, kind: ir.Type) -> Any:
    """Return an exact conversion to a type of real numbers; `None` if the plain one is."""
    held = float_of(value)
    if held is None:
        return None
    source, target = (str(ir.RankedTensorType(each).element_type) for each in (value.type, kind))
    if target == "i1":
        return _compared_with(held, value, 0.0, "NE")
    if source == "f64" and target in ("f32", "bf16"):
        narrow = _narrowed(value, with_element(kind, ir.F32Type.get()))
        return narrow if target == "f32" else stablehlo.convert(kind, narrow)
    if target == "f64" and source != "f64" and not module.is_flushed(value):
        if source == "bf16":
            value = stablehlo.convert(with_element(kind, ir.F32Type.get()), value)
        return _widened(value, kind)
    return None


def _widened(value: ir.Value, kind: ir.Type) -> ir.Value:
    """Convert float32 to float64. A subnormal number is a small integer times the least of them."""
    held = FLOATS["f32"]
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


def _narrowed(value: ir.Value, kind: ir.Type) -> ir.Value:
    """Convert float64 to float32. Below the normal numbers, the bits are the number of the least ones, rounded to
    even.
    """
    held, wide = FLOATS["f32"], FLOATS["f64"]
    size = stablehlo.abs(value)
    count = stablehlo.round_nearest_even(stablehlo.multiply(size, filled(value.type, 2.0**149)))
    bits = stablehlo.convert(held.like(kind), count)
    negative = _native(_bits(wide, value), _filled(wide, value, 0), "LT")
    sign = stablehlo.select(negative, _filled(held, kind, held.least), _filled(held, kind, 0))
    small = stablehlo.bitcast_convert(kind, stablehlo.or_(bits, sign))
    is_small = _native(size, filled(value.type, 2.0**-126), "LT")
    return stablehlo.select(is_small, small, stablehlo.convert(kind, value))


def _bits(held: Float, value: ir.Value) -> ir.Value:
    return stablehlo.bitcast_convert(held.like(value.type), value)


def _key(held: Float, value: ir.Value) -> ir.Value:
    bits = _bits(held, value)
    negative = _native(bits, _filled(held, value, 0), "LT")
    return stablehlo.select(negative, stablehlo.subtract(_filled(held, value, held.least), bits), bits)


def _ordered(held: Float, value: ir.Value) -> ir.Value:
    """Return integers of the order of floats, in which -0 comes before 0."""
    return _turned(held, _bits(held, value))


def _turned(held: Float, bits: ir.Value) -> ir.Value:
    """Return the bits of a float from its place in that order, or the place from the bits."""
    sign = stablehlo.shift_right_arithmetic(bits, _filled(held, bits, held.width - 1))
    return stablehlo.xor(bits, stablehlo.and_(sign, _filled(held, bits, ~held.least)))


def _native(left: ir.Value, right: ir.Value, direction: str) -> ir.Value:
    return stablehlo.compare(left, right, stablehlo.ComparisonDirectionAttr.get(direction))


def _filled(held: Float, like: ir.Value | ir.Type, number: int) -> ir.Value:
    """Return integers of the width of a float that all are `number`."""
    kind = ir.RankedTensorType(held.like(like.type if isinstance(like, ir.Value) else like))
    attribute = ir.IntegerAttr.get(kind.element_type, number)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(kind, attribute))


def _is_complex(kind: ir.Type) -> bool:
    return str(ir.RankedTensorType(kind).element_type).startswith("complex")


def _real(value: ir.Value) -> ir.Value:
    return stablehlo.real(value)


def _imag(value: ir.Value) -> ir.Value:
    return stablehlo.imag(value)


_TURNED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}

_Rule = Callable[[SubnormalFlow, ir.Operation], ir.Value | None]
_REDUCTIONS: dict[str, _Rule] = {"stablehlo.reduce": _reduce, "stablehlo.reduce_window": _reduce}
_RULES: dict[str, _Rule] = {
    "stablehlo.compare": _compare,
    "stablehlo.maximum": _extreme,
    "stablehlo.minimum": _extreme,
    "stablehlo.clamp": _clamp,
    "stablehlo.sign": _sign,
    "stablehlo.floor": _floor,
    "stablehlo.ceil": _ceil,
    "stablehlo.convert": _convert,
}
