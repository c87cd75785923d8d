"""Keep XLA from rewriting arithmetic into what gives other values.

XLA's algebraic simplifier treats floats as real numbers in places: `log(exp(x))` becomes `x`, and the overflow is lost;
`a / b / c` becomes `a / (b * c)`, and overflows. No flag of XLA turns these rewrites off one by one, and without the
whole pass programs are slow. So the value between the two operations goes through an optimization barrier, only where
such a pair occurs. XLA:CPU of JAX 0.10 takes barriers out after it has simplified and before it fuses: they cost
nothing there. Later releases keep them until they have fused, so each costs a pass over its value; they also have
fewer of the rewrites. There a choice by the elements of the dividend hides that a divisor is one number; it is fused.

GPUs and TPUs keep XLA's rewrites: what barriers cost there has not been measured.
"""

import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from .drawn_products import Draws, rounded
from .edited_module import FLOAT_TYPES, MOVES, EditedModule, filled, is_float, is_inexact
from .foldable_values import may_be_folded

# Releases whose simplifier cancels exponentials and squares.
_CANCELS = jax.__version_info__ < (0, 11)
# Releases whose simplifier puts constants together.
_REASSOCIATES = jax.__version_info__ < (0, 12)
# Releases whose barriers cost nothing.
_IS_FREE = jax.__version_info__ < (0, 11)

# Operations whose results XLA assumes to be 0 or greater, though they may be NaN.
_NOT_NEGATIVE = ("abs", "exponential", "sqrt", "power", "maximum", "multiply", "select")


def keep_arithmetic(module: ir.Module) -> int:
    """Put barriers into a module of StableHLO where XLA's CPU compiler would change values; return how many."""
    held, found = EditedModule.reading(module, _RULES)
    with module.context:
        for rule, operation in found:
            if is_inexact(operation.operands[0].type):
                rule(held, operation)
        draws = Draws(held)
        for rule, operation in found if held.draws else ():
            if rule is _add and is_float(operation.operands[0].type):
                _round_products(draws, operation)
    return held.barriers


def _round_products(draws: Draws, operation: ir.Operation) -> None:
    for place, operand in enumerate(operation.operands):
        if draws.is_product(operand):
            with operation.location, ir.InsertionPoint(operation):
                operation.operands[place] = rounded(operand)


def _log(module: EditedModule, operation: ir.Operation) -> None:
    """Keep XLA from turning log(pow(a, b)) into b * log(a), log(rsqrt(x)) into -log(x) / 2."""
    if module.comes_of(operation.operands[0], "power", "rsqrt"):
        module.keep(operation, 0)


def _exponential(module: EditedModule, operation: ir.Operation) -> None:
    """Keep XLA from joining an exponential with what reads it.

    log(exp(x)) becomes x, exp(a) * exp(b) becomes exp(a + b), a / exp(b) becomes a * exp(-b), pow(exp(a), b) becomes
    exp(a * b), also after XLA has removed what was in between, such as a product with 1, or has made a sum of products
    of a product of vectors.
    """
    if _CANCELS:
        module.keep_result(operation)


def _sqrt(module: EditedModule, operation: ir.Operation) -> None:
    """Keep XLA from turning sqrt(a * a) into |a|."""
    if _CANCELS and (_is_square(module, operation.operands[0]) or module.comes_of(operation.operands[0], "power")):
        module.keep(operation, 0)


def _rsqrt(module: EditedModule, operation: ir.Operation) -> None:
    """Keep XLA from turning rsqrt(1 / a) into sqrt(a), rsqrt(pow(a, -2)) into |a|."""
    if module.comes_of(operation.operands[0], "divide", "power"):
        module.keep(operation, 0)


def _divide(module: EditedModule, operation: ir.Operation) -> None:
    """Keep apart what XLA joins.

    a / b / c becomes a / (b * c), a / (b / c) becomes a * c / b, a / rsqrt(b) becomes a * sqrt(b), where b may be a
    square that overflows, and a divided by one number is multiplied by its reciprocal, which may be 0 or inf."""
    left, right = operation.operands[0], operation.operands[1]
    if module.comes_of(left, "divide"):
        module.keep(operation, 0)
    number = module.constant(right)
    if number is not None:
        is_exact = np.isfinite(number) and abs(np.frexp(number)[0]) == 0.5
        if not (_has_reciprocal(number, right.type) and is_exact):
            _keep_uniform(module, operation)
        elif _REASSOCIATES:
            _associate(module, operation, ("multiply",))
    elif module.comes_of(right, "divide", "power", "rsqrt"):
        module.keep(operation, 1)
    elif ir.RankedTensorType(right.type).rank and module.is_uniform(right):
        _keep_uniform(module, operation)


def _keep_uniform(module: EditedModule, operation: ir.Operation) -> None:
    """Keep XLA from seeing that all elements of a divisor are one number.

    Where a barrier costs a pass over the divisor, it becomes NaN where the dividend is NaN, as the quotient is then."""
    left, right = operation.operands[0], operation.operands[1]
    if _IS_FREE or not is_float(left.type):
        module.keep(operation, 1)
        return
    with operation.location, ir.InsertionPoint(operation):
        operation.operands[1] = _with_nan(left, right)


def _multiply(module: EditedModule, operation: ir.Operation) -> None:
    """Keep apart what XLA joins.

    a * c * d becomes a * (c * d), and a product with a mask a choice: 0 for infinity times 0."""
    for place, operand in enumerate(operation.operands):
        if not is_float(operand.type) and module.number_parts(operand) == (1.0, 0.0):
            _multiply_parts(operation, operation.operands[1 - place])
            return
        if not is_float(operand.type) and not module.number_parts(operand) and may_be_folded(module, operand):
            module.keep(operation, place)  # XLA may find a 1 when it has computed the number
        for source in module.sources(operand):
            if source.name == "stablehlo.convert":
                _choose(source)
    if _REASSOCIATES:
        _associate(module, operation, ("multiply", "divide"))


def _multiply_parts(operation: ir.Operation, factor: ir.Value) -> None:
    """Compute a complex number times 1: other signs of zeros than the number's, and NaN for infinity times 0."""
    with operation.location, ir.InsertionPoint(operation):
        x, y = stablehlo.real(factor), stablehlo.imag(factor)
        zero = filled(x.type, 0.0)
        real = stablehlo.subtract(x, stablehlo.multiply(y, zero))
        imag = stablehlo.add(stablehlo.multiply(x, zero), y)
        operation.results[0].replace_all_uses_with(stablehlo.complex(real, imag))


def _choose(convert: ir.Operation) -> None:
    """Make a choice between 1 and 0 of a mask that is converted to floats."""
    mask, result = convert.operands[0], convert.results[0]
    if str(ir.RankedTensorType(mask.type).element_type) != "i1" or not is_float(result.type):
        return
    with convert.location, ir.InsertionPoint(convert):
        one, zero = (filled(result.type, number) for number in (1.0, 0.0))
        result.replace_all_uses_with(stablehlo.SelectOp(mask, one, zero).result)


def _associate(module: EditedModule, operation: ir.Operation, names: tuple[str, ...]) -> None:
    """Keep apart two operations with a number each."""
    for place, other in ((0, 1), (1, 0)):
        if not module.is_uniform(operation.operands[other]):
            continue
        for source in module.sources(operation.operands[place]):
            if source.name.removeprefix("stablehlo.") in names and any(map(module.is_uniform, source.operands)):
                module.keep(operation, place)
                return


def _add(module: EditedModule, operation: ir.Operation) -> None:
    """Keep XLA from turning x + 0 into x, a + c + d into a + (c + d), a * c + b * c into (a + b) * c."""
    is_sum = operation.name == "stablehlo.add"
    if not is_float(operation.results[0].type):
        for place in (0, 1) if is_sum else (1,):
            number = module.number_parts(operation.operands[place])
            if not number and may_be_folded(module, operation.operands[place]):
                module.keep(operation, place)
            _without_sign(operation, [part == 0 and np.signbit(part) != is_sum for part in number])
        return
    for place in (0, 1) if is_sum else (1,):
        numbers = module.constants(operation.operands[place])
        is_dropped = [number == 0 and np.signbit(number) != is_sum for number in numbers]
        if any(is_dropped) and not all(is_dropped):
            module.keep(operation, place)
        elif any(is_dropped) or _is_dropped(module, operation.operands[place], is_sum):
            kept = operation.operands[1 - place]
            known = module.number_parts(kept)
            if known and not _has_minus_zero(known):
                return  # the sum itself stays a number that constants compute
            with operation.location, ir.InsertionPoint(operation):
                whole = filled(kept.type, 0.0) if known else _unsigned_zeros(kept).result
                operation.results[0].replace_all_uses_with(whole)
            return
        elif not module.number_parts(operation.operands[place]) and may_be_folded(module, operation.operands[place]):
            module.keep(operation, place)  # XLA may find a zero when it has computed the number
    if _REASSOCIATES:
        _associate(module, operation, ("add", "subtract"))
    if all(module.comes_of(each, "multiply", "divide") for each in operation.operands):
        factors = [
            {module.constant(each) for source in module.sources(operand) for each in source.operands} - {None}
            for operand in operation.operands
        ]
        if factors[0] & factors[1]:
            module.keep(operation, 0)


def _is_dropped(module: EditedModule, value: ir.Value, is_sum: bool) -> bool:
    """Return whether a few operations compute the zero of constants that XLA takes out of a sum or a difference."""
    number = module.number_parts(value)
    return number[:1] == (0,) and bool(np.signbit(number[0])) != is_sum


def _unsigned_zeros(value: ir.Value) -> ir.OpView:
    """Return `value` with 0 for -0, as a choice: where XLA leaves a sum with 0, LLVM takes it out of some kernels."""
    zero = filled(value.type, 0.0)
    is_zero = stablehlo.CompareOp(value, zero, stablehlo.ComparisonDirectionAttr.get("EQ"))
    return stablehlo.SelectOp(is_zero.result, zero, value)


def _compare(module: EditedModule, operation: ir.Operation) -> None:
    """Keep XLA from turning |x| >= 0 into true: it is false for NaN."""
    direction = str(operation.attributes["comparison_direction"])
    for place, name in ((0, "GE"), (1, "LE")):
        if f" {name}>" in direction and module.comes_of(operation.operands[place], *_NOT_NEGATIVE):
            number = module.constant(operation.operands[1 - place])
            if number is not None and number <= 0:
                module.keep(operation, place)


def _reduce(module: EditedModule, operation: ir.Operation) -> None:
    """Keep apart what XLA joins.

    The sum of -x becomes the negative of the sum, that of equal values a product, that of sums one sum in another
    order, and that of one element the element. LLVM may reorder the factors of a product: that of exp(x) becomes exp of
    the sum, that of x * c the product times a power of c."""
    bodies = _bodies(operation)
    if bodies == ["stablehlo.multiply", "stablehlo.return"] and _is_computed(module, operation.operands[0]):
        with operation.location, ir.InsertionPoint(operation):
            operand = operation.operands[0]
            # LLVM reads nothing through this choice, but reads through barriers.
            operation.operands[0] = _with_nan(operand, operand)
    if bodies != ["stablehlo.add", "stablehlo.return"]:
        return
    operand = narrow = operation.operands[0]
    if not isinstance(operand.owner, ir.Block) and operand.owner.name == "stablehlo.convert":
        narrow = operand.owner.operands[0]  # XLA repeats what is converted
    if module.comes_of(narrow, "negate", "reduce", "concatenate") or _is_repeated(narrow):
        module.keep(operation, 0)
    size = ir.RankedTensorType(operand.type).shape
    if _is_from_minus_zero(module, operation):
        return
    is_single = all(size[axis] == 1 for axis in ir.DenseI64ArrayAttr(operation.attributes["dimensions"]))
    if is_single or may_be_folded(module, narrow):
        _without_sign(operation)


def _is_computed(module: EditedModule, value: ir.Value) -> bool:
    """Return whether a program computes a float in an operation that LLVM may join with what reads it.

    A choice by a number, such as that of a power whose exponent is an argument, is one: LLVM compiles a loop for each
    outcome."""
    return is_float(value.type) and any(
        source.name not in ("", "stablehlo.constant") for source in module.sources(value)
    )


def _with_nan(tested: ir.Value, value: ir.Value) -> ir.Value:
    """Return `value`, and NaN where `tested` is NaN."""
    is_nan = stablehlo.CompareOp(tested, tested, stablehlo.ComparisonDirectionAttr.get("NE"))
    return stablehlo.SelectOp(is_nan.result, filled(value.type, float("nan")), value).result


def _dot(module: EditedModule, operation: ir.Operation) -> None:
    """Let the sums of a product of matrices start with 0.

    XLA makes its one term of a sum of one, and starts with the first term in some columns of a row times a matrix. A
    product of one term for each element also needs the barriers of a product of numbers.
    """
    numbers = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
    size = ir.RankedTensorType(operation.operands[0].type).shape
    if all(size[axis] == 1 for axis in numbers.lhs_contracting_dimensions):
        _multiply(module, operation)
        _without_sign(operation)
    elif _is_row_by_columns(operation, numbers):
        _without_sign(operation)


def _is_row_by_columns(operation: ir.Operation, numbers: stablehlo.DotDimensionNumbers) -> bool:
    """Return whether one factor is a vector, and the sums are over another than the last dimension of the other one."""
    sides = (
        (numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions),
        (numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions),
    )
    free, is_last = [], []
    for operand, (batch, contracted) in zip(operation.operands, sides, strict=True):
        size = ir.RankedTensorType(operand.type).shape
        free.append(math.prod(n for axis, n in enumerate(size) if axis not in (*batch, *contracted)))
        is_last.append(len(size) - 1 in contracted)
    return any(free[place] == 1 and free[1 - place] > 1 and not is_last[1 - place] for place in (0, 1))


def _reduce_window(module: EditedModule, operation: ir.Operation) -> None:
    """Keep sums over windows from becoming the element, of which there is one or which is -0: they start with 0."""
    if _bodies(operation) != ["stablehlo.add", "stablehlo.return"]:
        return
    sizes = ir.DenseI64ArrayAttr(operation.attributes["window_dimensions"])
    if all(size == 1 for size in sizes) or may_be_folded(module, operation.operands[0]):
        _without_sign(operation)


def _is_from_minus_zero(module: EditedModule, operation: ir.Operation) -> bool:
    """Return whether a sum starts with -0, and so has the sign of its terms where all of them are zeros."""
    return _has_minus_zero(module.number_parts(operation.operands[1]))


def _has_minus_zero(number: tuple[float, ...]) -> bool:
    return any(part == 0 and np.signbit(part) for part in number)


def _scatter(module: EditedModule, operation: ir.Operation) -> None:
    """Keep the one number that is added to a zero from becoming that zero: XLA drops a loop of one turn."""
    if _bodies(operation) != ["stablehlo.add", "stablehlo.return"]:
        return
    written = operation.operands[0]
    if not _is_zero(module, written):
        if is_float(written.type) and module.constant(written) is None and may_be_folded(module, written):
            module.keep(operation, 0)  # XLA may find a zero when it has computed the number
        return
    numbers = stablehlo.ScatterDimensionNumbers(operation.attributes["scatter_dimension_numbers"])
    indices = ir.RankedTensorType(operation.operands[1].type).shape
    if all(size == 1 for dim, size in enumerate(indices) if dim != numbers.index_vector_dim):
        _without_sign(operation)


def _is_zero(module: EditedModule, value: ir.Value) -> bool:
    """Return whether all elements of `value` are 0, for complex numbers by the text of the constant."""
    if not isinstance(value.owner, ir.Block) and value.owner.name == "stablehlo.convert":
        return _is_zero(module, value.owner.operands[0])
    if is_float(value.type):
        number = module.constant(value)
        return number is not None and number == 0 and not np.signbit(number)  # -0 and a number is that number
    return any("dense<(0.000000e+00,0.000000e+00)>" in str(source) for source in module.sources(value))


def _bodies(operation: ir.Operation) -> list[str]:
    return [each.name for each in operation.regions[0].blocks[0].operations]


def _without_sign(operation: ir.Operation, changed: Sequence[bool] = (True, True)) -> None:
    """Make 0 of a -0 in the result of `operation`, and in the `changed` parts of complex numbers."""
    value = operation.results[0]
    if not is_inexact(value.type) or not any(changed):
        return
    with operation.location, ir.InsertionPoint.after(operation):
        if is_float(value.type):
            kept = _unsigned_zeros(value)
            readers = [kept.operands[0].owner.operation, kept.operation]
        else:
            parts = [stablehlo.real(value), stablehlo.imag(value)]
            readers = [part.owner.operation for part in parts]
            kept = stablehlo.ComplexOp(
                *(
                    _unsigned_zeros(part).result if is_changed else part
                    for part, is_changed in zip(parts, changed, strict=True)
                )
            )
    value.replace_all_uses_except(kept.result, readers)


def _is_repeated(value: ir.Value) -> bool:
    """Return whether `value` is a smaller one several times."""
    while not isinstance(value.owner, ir.Block) and value.owner.name in MOVES:
        if value.owner.name == "stablehlo.broadcast_in_dim":
            return True
        value = value.owner.operands[0]
    return False


def _is_square(module: EditedModule, value: ir.Value) -> bool:
    return any(
        source.name == "stablehlo.multiply" and source.operands[0] == source.operands[1]
        for source in module.sources(value)
    )


def _has_reciprocal(number: float, kind: ir.Type) -> bool:
    """Return whether a number and its reciprocal are both normal in a type."""
    element = ir.RankedTensorType(kind).element_type
    least = jax.numpy.finfo(FLOAT_TYPES.get(str(element), np.float64)).smallest_normal
    return bool(least <= abs(number) <= 1 / float(least))


_RULES: dict[str, Callable[[EditedModule, ir.Operation], None]] = {
    "stablehlo.log": _log,
    "stablehlo.sqrt": _sqrt,
    "stablehlo.rsqrt": _rsqrt,
    "stablehlo.exponential": _exponential,
    "stablehlo.divide": _divide,
    "stablehlo.multiply": _multiply,
    "stablehlo.add": _add,
    "stablehlo.subtract": _add,
    "stablehlo.compare": _compare,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.scatter": _scatter,
    "stablehlo.dot_general": _dot,
}
