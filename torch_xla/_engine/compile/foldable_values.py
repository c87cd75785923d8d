"""Which values of a module XLA may find to be constants when it compiles, though the module does not say so.

XLA computes what constants alone make, also in loops, and simplifies: an integer times 0 is 0, and so is a place in a
dimension of size 1; a slice of joined values may show one of them. An addend of 0 that it finds so is taken out of a
sum.
"""

from dataclasses import dataclass, field
from typing import Any

from jax.extend.mlir import ir

from .edited_module import EditedModule, is_inexact

# Operations that give no constant though they have no operands, and operations that read more than their operands.
_NOT_FOLDED = frozenset(("partition_id", "replica_id", "create_token", "case", "if", "custom_call"))


def may_be_folded(module: EditedModule, value: ir.Value) -> bool:
    """Return whether XLA may compute `value` when it compiles.

    In a function that is called several times, one of the calls is enough. A long search ends without one.
    """
    return _Search(module).is_constant(value)


@dataclass(slots=True)
class _Search:
    module: EditedModule
    found: dict[ir.Value, bool] = field(default_factory=dict)

    def is_constant(self, value: ir.Value, depth: int = 0) -> bool:
        if value not in self.found:
            self.found[value] = False  # for a function that is called with what another call of it returns
            self.found[value] = depth < 32 and len(self.found) < 256 and self._is_made_of_constants(value, depth + 1)
        return self.found[value]

    def _is_made_of_constants(self, value: ir.Value, depth: int) -> bool:
        elsewhere = self.module.elsewhere(value)
        if elsewhere is not None:
            return any(self.is_constant(each, depth) for each in elsewhere)
        operation: ir.Operation = value.owner.operation  # type: ignore[union-attr]
        name, operands = operation.name.removeprefix("stablehlo."), [*operation.operands]
        if name == "iota":
            return _size(value)[ir.IntegerAttr(operation.attributes["iota_dimension"]).value] == 1
        if name in _NOT_FOLDED:
            return False
        if name == "while" and not is_inexact(value.type):
            return True  # of a loop of one round, such as a search among one number, XLA finds what it counts
        if name in ("reduce", "dot_general") and any(0 in _size(each) for each in operands):
            return True
        if name in ("reduce", "sort") and len(operation.results) > 1:
            own = operands[ir.OpResult(value).result_number]
            are_known = all(_is_iota(each) or self.is_constant(each, depth) for each in operands)
            return are_known or self.is_constant(own, depth)
        if name == "chlo.top_k" or (name == "gather" and self.is_constant(operands[0], depth)):
            dims = _size(operands[0])  # of one element there is one place
            if all(size == 1 for size in (dims[-1:] if name == "chlo.top_k" else dims)):
                return name == "gather" or ir.OpResult(value).result_number == 1
        if name == "slice":
            return any(self.is_constant(each, depth) for each in self._shown(operation, operands[0]))
        elif name == "select" and self._is_one_choice(operands, depth):
            return True
        elif not is_inexact(operands[0].type if operands else value.type) and self._is_absorbed(name, operands, depth):
            return True
        return all(self.is_constant(each, depth) for each in operands)

    def _shown(self, operation: ir.Operation, joined: ir.Value) -> list[ir.Value]:
        """Return which of joined values a slice may show, or the padding of a value; if it shows more, their whole."""
        while elsewhere := self.module.elsewhere(joined):
            joined = elsewhere[0]
        if isinstance(joined.owner, ir.Block):
            return [joined]
        starts, ends = (_numbers(operation, f"{name}_indices") for name in ("start", "limit"))
        source = joined.owner.operation
        if source.name == "stablehlo.concatenate":
            dim, begin = ir.IntegerAttr(source.attributes["dimension"]).value, 0
            for part in source.operands:
                end = begin + _size(part)[dim]
                if begin <= starts[dim] and ends[dim] <= end:
                    return [part]
                begin = end
        elif source.name == "stablehlo.pad":
            low, between = (_numbers(source, name) for name in ("edge_padding_low", "interior_padding"))
            for dim, size in enumerate(_size(source.operands[0])):
                end = low[dim] + size + between[dim] * max(size - 1, 0)
                if ends[dim] <= low[dim] or starts[dim] >= end:
                    return [source.operands[1]]
        elif source.name == "stablehlo.dynamic_update_slice":
            return [*source.operands][:2]
        return [joined]

    def _is_one_choice(self, operands: list[ir.Value], depth: int) -> bool:
        """Return whether a choice is a constant by its condition, or is one between equal constants."""
        condition, *branches = operands
        are_constant = [self.is_constant(each, depth) for each in branches]
        if self.is_constant(condition, depth):
            return any(are_constant)
        return all(are_constant) and not self._are_written_apart(*branches)

    def _are_written_apart(self, left: ir.Value, right: ir.Value) -> bool:
        """Return whether two values are constants that the module has, each another one."""
        # As text: MLIR's Python cannot read complex numbers.
        written = [
            {str(source).partition("dense")[2] for source in self.module.sources(each) if _is_constant(source)}
            for each in (left, right)
        ]
        return all(written) and not written[0] & written[1]

    def _is_absorbed(self, name: str, operands: list[ir.Value], depth: int) -> bool:
        """Return whether one operand makes 0 of any integer, or both operands are one value."""
        if name in ("multiply", "and"):
            return any(self.is_constant(each, depth) and not self._is_nonzero(each) for each in operands)
        return name in ("subtract", "xor", "compare") and operands[0] == operands[1]

    def _is_nonzero(self, value: ir.Value) -> bool:
        return any(_is_constant(source) and _has_nonzero(source) for source in self.module.sources(value))


def _is_constant(source: Any) -> bool:
    return bool(source.name == "stablehlo.constant")


def _has_nonzero(constant: ir.Operation) -> bool:
    dense = constant.attributes["value"]
    if not isinstance(dense, ir.DenseIntElementsAttr) or not dense.is_splat:
        return True
    number: Any = dense.get_splat_value()
    return bool(number.value)


def _is_iota(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "stablehlo.iota"


def _size(value: ir.Value) -> list[int]:
    return ir.RankedTensorType(value.type).shape


def _numbers(operation: ir.Operation, name: str) -> list[int]:
    return [*ir.DenseI64ArrayAttr(operation.attributes[name])]
