"""Products of random numbers, which are rounded before they are added: `loc + scale * torch.randn(...)`.

LLVM joins a product and a sum that are in one program, and rounds once. So a draw of `torch.distributions`, which is
composed of such operations, would depend on where a program is cut. For other numbers that is ordinary arithmetic.
"""

from typing import Any

import jax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from .edited_module import FLOAT_TYPES, GENERATOR, EditedModule, filled, text

# Operations whose results are no random numbers though their operands may be.
_ENDS = frozenset(
    f"stablehlo.{name}"
    for name in ("case", "convolution", "custom_call", "dot_general", "dynamic_slice", "gather", "if", "reduce",
                 "reduce_window", "scatter", "sort", "while")
)  # fmt: skip
_SUMS = frozenset(("stablehlo.add", "stablehlo.subtract"))
# A number from a range with two ends is one sum, to which a distribution adds its own. A value of more sums, such as a
# dropout, a residual connection and the difference from a mean, is data with noise.
_MOST_SUMS = 1
# By the width of a float, the bits of one of its NaN.
_NAN = {16: 0x7FFF, 32: 0x7FC0BEEF, 64: 0x7FF8BEEF00000000}


def rounded(product: ir.Value) -> ir.Value:
    """Return a product as it is, which LLVM then does not join with a sum: it does not know the bits of floats."""
    kind = ir.RankedTensorType(product.type)
    width = jax.numpy.finfo(FLOAT_TYPES[str(kind.element_type)]).bits
    whole = ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_signless(width))
    number = ir.IntegerAttr.get(whole.element_type, _NAN[width])
    one_nan = stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(whole, number)).result
    bits = stablehlo.BitcastConvertOp(whole, product).result
    is_nan = stablehlo.CompareOp(bits, one_nan, stablehlo.ComparisonDirectionAttr.get("EQ"))
    return stablehlo.SelectOp(is_nan.result, filled(kind, float("nan")), product).result


class Draws:
    """Which values of a module are random numbers: functions and products of bits that it draws."""

    def __init__(self, module: EditedModule) -> None:
        self._module = module
        self._not_drawn: set[tuple[ir.Value, int]] = set()
        self._drawing: dict[ir.Operation, bool] = {}

    def is_product(self, value: ir.Value) -> bool:
        """Return whether a value is a product of random numbers, or the negative of one."""
        for source in self._module.sources(value):
            if source.name == "stablehlo.negate":
                return self.is_product(source.operands[0])
            if source.name == "stablehlo.multiply" and any(map(self._is_drawn, source.operands)):
                return True
        return False

    def _is_drawn(self, value: ir.Value) -> bool:
        waiting, seen = [(value, 0)], {(value, 0)}
        while waiting:
            found, sums = waiting.pop()
            for source in self._module.sources(found):
                if self._draws(source):
                    return True
                is_sum = source.name in _SUMS and not any(map(self._module.is_uniform, source.operands))
                if source.name and source.name not in _ENDS and sums + is_sum <= _MOST_SUMS:
                    fresh = {(each, sums + is_sum) for each in source.operands} - seen - self._not_drawn
                    waiting += fresh
                    seen |= fresh
        self._not_drawn |= seen
        return False

    def _draws(self, operation: Any) -> bool:
        """Return whether an operation draws, or one within it, such as in the body of a loop or in what it calls."""
        if operation.name == "func.call":
            return self._draws(self._module.functions[text(operation.attributes["callee"])])
        if operation.name == GENERATOR or not operation.name or not operation.regions:
            return bool(operation.name == GENERATOR)
        if operation not in self._drawing:
            inner = (each.operation for region in operation.regions for block in region.blocks for each in block)
            self._drawing[operation] = any(map(self._draws, inner))
        return self._drawing[operation]
