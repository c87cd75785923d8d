"""Keep from a TPU's compiler the uses of 64-bit dtypes for which it fails or ends the process.

The operands of a matrix product get one dtype if one of them is a 64-bit integer: JAX multiplies a float matrix and an
int64 one where it decomposes by singular values. The bits of float64 are taken as uint64 and converted to int64: of
those taken as int64 the compiler makes halves of two dtypes, and refuses to add, compare or shift them. float64 is
rounded to fewer digits by way of float32, because the compiler rounds no float64. A program with complex128 is refused,
in whatever operation: the compiler knows some operations of that dtype, and ends the process for others, such as
conversions and quotients.
"""

import re

import jax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..compat.names import jax as private

_LONG = ("i64", "ui64")
_DIGITS = 23  # of float32, behind the first
_OPERATOR = re.compile(r"\w+::\w+")
_REFUSED = (
    "UNIMPLEMENTED: a TPU has no complex128{of}. Convert to torch.complex64 before, or compute this part on the CPU."
)


def prepare(module: ir.Module) -> None:
    """Edit a module of StableHLO for a TPU's compiler. Raises `JaxRuntimeError` for complex128."""
    products: list[ir.Operation] = []
    bitcasts: list[ir.Operation] = []
    roundings: list[ir.Operation] = []
    refused: list[ir.Operation] = []

    def look(operation: ir.Operation) -> ir.WalkResult:
        kinds = [operation.attributes["function_type"]] if operation.name == "func.func" else operation.results.types
        if any("complex<f64>" in str(kind) for kind in kinds):
            refused.append(operation)
            return ir.WalkResult.INTERRUPT
        if operation.name == "stablehlo.dot_general":
            products.append(operation)
        elif operation.name == "stablehlo.bitcast_convert":
            bitcasts.append(operation)
        elif operation.name == "stablehlo.reduce_precision":
            roundings.append(operation)
        return ir.WalkResult.ADVANCE

    private.walk(module, look)
    if refused:
        raise jax.errors.JaxRuntimeError(_REFUSED.format(of=_named(refused[0])))
    for product in products:
        if any(_element(operand) in _LONG for operand in product.operands):
            _give_one_dtype(product)
    for bitcast in bitcasts:
        if _element(bitcast.operands[0]) == "f64" and _element(bitcast.results[0]) == "i64":
            _take_unsigned_bits(bitcast)
    for rounding in roundings:
        if _element(rounding.operands[0]) == "f64":
            _round_as_float32(rounding)


def _named(operation: ir.Operation) -> str:
    found = _OPERATOR.search(str(operation.location))
    return f", which {found[0]} computes" if found else ""


def _element(value: ir.Value) -> str:
    return str(ir.RankedTensorType(value.type).element_type)


def _give_one_dtype(product: ir.Operation) -> None:
    element = ir.RankedTensorType(product.results[0].type).element_type
    with product.location, ir.InsertionPoint(product):
        for place, operand in enumerate(product.operands):
            kind = ir.RankedTensorType(operand.type)
            if kind.element_type != element:
                converted = ir.RankedTensorType.get(kind.shape, element)
                product.operands[place] = stablehlo.convert(converted, operand)


def _take_unsigned_bits(bitcast: ir.Operation) -> None:
    kind = ir.RankedTensorType(bitcast.results[0].type)
    with bitcast.location, ir.InsertionPoint(bitcast):
        unsigned = ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_unsigned(64))
        bits = stablehlo.convert(kind, stablehlo.bitcast_convert(unsigned, bitcast.operands[0]))
    bitcast.results[0].replace_all_uses_with(bits)
    bitcast.erase()


def _round_as_float32(rounding: ir.Operation) -> None:
    """Round float64 to the digits of float32 or fewer. Rounding to all of its own digits becomes a barrier."""
    (operand,) = rounding.operands
    digits = ir.IntegerAttr(rounding.attributes["mantissa_bits"]).value
    with rounding.location, ir.InsertionPoint(rounding):
        if digits > _DIGITS:
            rounded = stablehlo.OptimizationBarrierOp([operand]).results[0]
        else:
            kind = ir.RankedTensorType.get(ir.RankedTensorType(operand.type).shape, ir.F32Type.get())
            narrow = stablehlo.convert(kind, operand)
            if digits < _DIGITS:
                narrow = stablehlo.reduce_precision(narrow, 8, digits)
            rounded = stablehlo.convert(operand.type, narrow)
    rounding.results[0].replace_all_uses_with(rounded)
    rounding.erase()
