"""A module of StableHLO that is being changed: what computes its values, and which of them are known numbers."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from ..compat.names import jax as private

# Operations that move values and do not change them.
MOVES = frozenset(f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "transpose", "slice", "reverse"))

# The operation that draws random bits.
GENERATOR = "stablehlo.rng_bit_generator"

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class _Unknown:
    name: str = ""
    operands: tuple[ir.Value, ...] = ()


UNKNOWN = _Unknown()


@dataclass(slots=True)
class EditedModule:
    """A module that is being changed: its functions by name, the calls of each, and how many barriers went in."""

    functions: dict[str, ir.Operation]
    calls: dict[str, list[ir.Operation]]
    barriers: int = 0
    draws: bool = False

    @classmethod
    def reading(
        cls, module: ir.Module, rules: Mapping[str, _Found]
    ) -> tuple["EditedModule", list[tuple[_Found, ir.Operation]]]:
        """Return a module of StableHLO, and those of its operations that `rules` has a rule for, each with its rule."""
        functions: dict[str, ir.Operation] = {}
        calls: dict[str, list[ir.Operation]] = {}
        found: list[tuple[_Found, ir.Operation]] = []
        draws = False

        def look(operation: ir.Operation) -> ir.WalkResult:
            nonlocal draws
            name = operation.name
            rule = rules.get(name)
            if rule is not None:
                found.append((rule, operation))
            elif name == "func.func":
                functions[text(operation.attributes["sym_name"])] = operation
            elif name == "func.call":
                calls.setdefault(text(operation.attributes["callee"]), []).append(operation)
            elif name == GENERATOR:
                draws = True
            return ir.WalkResult.ADVANCE

        private.walk(module, look)
        return cls(functions, calls, draws=draws), found

    def sources(self, value: ir.Value, depth: int = 0) -> Iterator[Any]:
        """Yield the operations that compute `value`, seen through moves and through calls of functions.

        A function may be called several times, and each call gives its own. Where nothing is known, as of an argument
        of the program, `UNKNOWN` comes.
        """
        elsewhere = self.elsewhere(value)
        if elsewhere is not None:
            if depth >= 4 or not elsewhere:
                yield UNKNOWN
                return
            for each in elsewhere:
                yield from self.sources(each, depth + 1)
            return
        owner: Any = value.owner
        if owner.name in MOVES:
            yield from self.sources(owner.operands[0], depth)
        else:
            yield owner.operation  # whose `name` is that of its kind; that of a view may be a symbol's

    def elsewhere(self, value: ir.Value) -> list[ir.Value] | None:
        """Return what `value` is in other functions: what each call gives for an argument, or what a call returns.

        `None` for a value that an operation computes; nothing for an argument of the program.
        """
        owner = value.owner
        if isinstance(owner, ir.Block):
            function = owner.owner
            is_function = function.operation.name == "func.func"
            calls = self.calls.get(text(function.attributes["sym_name"]), ()) if is_function else ()
            return [call.operands[ir.BlockArgument(value).arg_number] for call in calls]
        if owner.name != "func.call":
            return None
        body = self.functions[text(owner.attributes["callee"])].regions[0].blocks[0]
        return [[*body.operations][-1].operation.operands[ir.OpResult(value).result_number]]

    def comes_of(self, value: ir.Value, *names: str) -> bool:
        """Return whether one of the operations with these `names` computes `value`."""
        return any(source.name.removeprefix("stablehlo.") in names for source in self.sources(value))

    def constant(self, value: ir.Value) -> float | None:
        """Return the one number that all elements of `value` are, if the module says so for each call."""
        numbers = self.constants(value)
        return numbers[0] if numbers and len({repr(number) for number in numbers}) == 1 else None

    def constants(self, value: ir.Value) -> list[float | None]:
        """Return, for each operation that computes `value`, the one number that all elements are, or `None`."""
        return [_splat(source) for source in self.sources(value)]

    def number_parts(self, value: ir.Value, depth: int = 0) -> tuple[float, ...]:
        """Return the parts of the one number that all elements of `value` are; nothing if it is not known.

        A few operations may compute it of constants.
        """
        number: tuple[float, ...] = ()
        for source in self.sources(value) if depth < 8 else ():  # the first that is not known ends a long search
            parts = _parts_computed(self, source, depth + 1)
            if not parts or (number and repr(parts) != repr(number)):  # 0 and -0 are equal, but no one number
                return ()
            number = parts
        return number

    def is_uniform(self, value: ir.Value) -> bool:
        """Return whether all elements of `value` are one number, known or not."""
        while not isinstance(value.owner, ir.Block) and value.owner.name in MOVES and not _is_single(value):
            value = value.owner.operands[0]
        return _is_single(value) or None not in (self.constants(value) or [None])

    def keep(self, operation: ir.Operation, place: int) -> None:
        """Put a barrier in front of an operand of `operation`."""
        with operation.location, ir.InsertionPoint(operation):
            operation.operands[place] = stablehlo.OptimizationBarrierOp([operation.operands[place]]).results[0]
        self.barriers += 1

    def keep_result(self, operation: ir.Operation) -> None:
        """Put a barrier behind the result of `operation`, if there is none."""
        value = operation.results[0]
        if all(use.owner.name == "stablehlo.optimization_barrier" for use in value.uses):
            return
        with operation.location, ir.InsertionPoint.after(operation):
            barrier = stablehlo.OptimizationBarrierOp([value])
        value.replace_all_uses_except(barrier.results[0], [barrier.operation])
        self.barriers += 1


def _splat(source: ir.Operation) -> float | None:
    # MLIR's Python cannot read complex numbers.
    if source.name != "stablehlo.constant" or not is_float(source.results[0].type):
        return None
    dense = source.attributes["value"]
    if not isinstance(dense, ir.DenseElementsAttr) or not dense.is_splat:
        return None
    found = dense.get_splat_value()
    return float(found.value) if isinstance(found, ir.FloatAttr) else None


def _parts_computed(module: EditedModule, source: ir.Operation, depth: int) -> tuple[float, ...]:
    """Return the parts of the number that a constant, or arithmetic of constants, is; nothing if it is not known."""
    name = source.name.removeprefix("stablehlo.")
    if name == "constant":
        number = _splat(source)
        written = _COMPLEX.search(str(source)) if number is None else None
        return (number,) if number is not None else tuple(map(float, written.groups())) if written else ()
    compute = _ARITHMETIC.get(name)
    if compute is None or not is_inexact(source.results[0].type):
        return ()
    operands = list(takewhile(bool, (module.number_parts(each, depth) for each in source.operands)))
    if len(operands) < len(source.operands):
        return ()
    return compute(*operands)[: 1 if is_float(source.results[0].type) else 2]


def _parts(number: complex) -> tuple[float, float]:
    return number.real, number.imag


# Of numbers by their parts: how the rules compute a complex number from Python's.
_ARITHMETIC: dict[str, Callable[..., tuple[float, ...]]] = {
    "real": lambda x: x[:1],
    "imag": lambda x: x[1:],
    "complex": lambda x, y: (*x, *y),
    "add": lambda x, y: tuple(map(operator.add, x, y)),
    "subtract": lambda x, y: tuple(map(operator.sub, x, y)),
    "negate": lambda x: tuple(map(operator.neg, x)),
    "multiply": lambda x, y: (x[0] * y[0],) if len(x) == 1 else _parts(complex(*x) * complex(*y)),
    "convert": lambda x: (*x, 0.0),
}
_COMPLEX = re.compile(r"dense<\(([-+.\de]+),([-+.\de]+)\)>")


def filled(kind: ir.Type, number: float) -> ir.Value:
    """Return a tensor of one number."""
    kind = ir.RankedTensorType(kind)
    attribute = ir.FloatAttr.get(kind.element_type, number)
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, attribute)).result


FLOAT_TYPES: dict[str, type[np.generic]] = {
    "f16": np.float16,
    "bf16": jax.numpy.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}


def is_float(kind: ir.Type) -> bool:
    return str(ir.RankedTensorType(kind).element_type) in FLOAT_TYPES


def is_inexact(kind: ir.Type) -> bool:
    element = str(ir.RankedTensorType(kind).element_type) if isinstance(kind, ir.RankedTensorType) else ""
    return element in FLOAT_TYPES or element.startswith("complex")


def text(attribute: ir.Attribute) -> str:
    """Return the name that an attribute of MLIR holds."""
    return str(attribute).strip('"@')


def _is_single(value: ir.Value) -> bool:
    return all(size == 1 for size in ir.RankedTensorType(value.type).shape)
