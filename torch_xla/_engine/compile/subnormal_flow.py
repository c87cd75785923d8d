"""Find out where subnormal numbers go in a program for the CPU: what flushes a value, and what reads it as zero.

XLA:CPU runs with the processor's flags that read a subnormal number as zero and write zero for one. So a result of
arithmetic is never subnormal, and it makes no difference to arithmetic whether an operand is. Values are followed
through moves, choices, cases, sums and calls of functions.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jax.extend.mlir import ir

from .edited_module import MOVES, EditedModule, text

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


class Float:
    """A float type whose subnormal numbers XLA:CPU flushes, and the integers that hold its bits."""

    def __init__(self, width: int, fraction: int) -> None:
        self.width, self.fraction = width, fraction
        self.least = -(1 << (width - 1))
        self.infinity = ((1 << (width - 1 - fraction)) - 1) << fraction

    def like(self, kind: ir.Type) -> ir.Type:
        """Return the type of integers of the shape of `kind`."""
        return with_element(kind, ir.IntegerType.get_signless(self.width))

    def bits_of(self, number: float) -> int:
        """Return the bits of a number without its sign. float64 has those of all."""
        wide = int(np.float64(abs(number)).view(np.int64))
        if self.width == 64:
            return wide
        narrow = int(np.float32(abs(number)).view(np.int32))
        return narrow >> (32 - self.width)


FLOATS = {"bf16": Float(16, 7), "f32": Float(32, 23), "f64": Float(64, 52)}


class SubnormalFlow:
    """The effects of a module's operations on subnormal numbers."""

    def __init__(self, module: EditedModule) -> None:
        self._module = module
        self._flushed: set[ir.Value] = set()  # values that are known to be
        self.constant = module.constant

    def is_flushed(self, value: ir.Value) -> bool:
        """Return whether arithmetic of XLA:CPU computes `value`, or it is a number that is not subnormal."""
        return self._holds_for_all(value, self._come_from, self._flushed)

    def is_read_as_zero(self, value: ir.Value) -> bool:
        """Return whether all that reads `value` takes a subnormal number for zero."""
        return self._holds_for_all(value, self._go_to, set())

    def _holds_for_all(
        self, value: ir.Value, following: Callable[[ir.Value], list[ir.Value] | None], known: set[ir.Value]
    ) -> bool:
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

    def _come_from(self, value: ir.Value) -> list[ir.Value] | None:
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
            number, held = self.constant(value), float_of(value)
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

    def _go_to(self, value: ir.Value) -> list[ir.Value] | None:
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
                held, number = float_of(value), self.constant(reader.operands[1 - place])
                if held is None or number is None or held.bits_of(number) < 1 << held.fraction:
                    return None
            elif name not in _FLUSHING or self._has_neutral(reader.operands):
                return None
        return found

    def _calls_of(self, function: Any) -> list[ir.Operation]:
        return self._module.calls.get(text(function.attributes["sym_name"]), [])

    def _body_of(self, call: ir.Operation | ir.OpView) -> ir.Block:
        return self._module.functions[text(call.attributes["callee"])].regions[0].blocks[0]

    def _has_neutral(self, operands: Iterable[ir.Value]) -> bool:
        return any(number in _NEUTRAL for each in operands for number in self._module.constants(each))


def float_of(value: ir.Value) -> Float | None:
    """Return the float type of a value; `None` if XLA:CPU flushes no numbers of its type."""
    return FLOATS.get(str(ir.RankedTensorType(value.type).element_type))


def with_element(kind: ir.Type, element: ir.Type) -> ir.Type:
    """Return the type of tensors of the shape of `kind` with other elements."""
    return ir.RankedTensorType.get(ir.RankedTensorType(kind).shape, element)


def _is_sum(operation: ir.Operation | ir.OpView) -> bool:
    """Return whether a reduction or a scatter adds."""
    return bool([*operation.regions[0].blocks[0].operations][0].operation.name == "stablehlo.add")
