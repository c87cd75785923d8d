"""Operations on lists whose elements are computed independently, and how to restrict them to some elements."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ...ir.call_plan import Number, Operand, Plan, interned
from ...lowering.machinery.registry import is_separable


def length_of_lists(plan: Plan) -> int:
    """Return the length of the lists of an operation whose elements are computed separately, or 0."""
    if not is_separable(plan.op):
        return 0
    lengths = {count for count in plan.structure if count not in (0, -2)}
    if len(lengths) != 1 or -1 in lengths:
        return 0
    (length,) = lengths
    args, kwargs = plan.arguments
    lists = [each for each in (*args, *kwargs.values()) if isinstance(each, (list, tuple)) and each]
    return length if all(len(each) == length and all(map(_is_filled, each)) for each in lists) else 0


def _is_filled(argument: object) -> bool:
    return isinstance(argument, Operand | Number)


@dataclass(frozen=True, slots=True)
class Lists:
    """An operation on lists: which of its operands, numbers and outputs each element has for itself."""

    plan: Plan
    operands: list[list[int]]
    numbers: list[list[int]]
    outputs: list[list[int]]

    @classmethod
    def of(cls, plan: Plan) -> "Lists":
        """Return the list operation of a plan with a `length_of_lists`."""
        length = length_of_lists(plan)
        args, kwargs = plan.arguments
        operands: list[list[int]] = [[] for _ in range(length)]
        numbers: list[list[int]] = [[] for _ in range(length)]
        for each in (*args, *kwargs.values()):
            if isinstance(each, (list, tuple)):
                for element, argument in enumerate(each):
                    (operands if isinstance(argument, Operand) else numbers)[element].append(argument.index)
        lists = len(plan.outputs) // length
        return cls(plan, operands, numbers, [[nth * length + e for nth in range(lists)] for e in range(length)])

    def kind_of(self, element: int) -> Hashable:
        """Return the kind of an element: elements of one kind are computed in the same way."""
        specs = tuple(self.plan.operands[index] for index in self.operands[element])
        return specs, tuple(self.plan.numbers[index] for index in self.numbers[element])

    def part(self, elements: Sequence[int]) -> tuple[Plan, list[int], list[int], list[int]]:
        """Return the plan for some of the elements, and which operands, numbers and outputs of the whole are its
        own.
        """
        operands: dict[int, int] = {}
        numbers: dict[int, int] = {}

        def renumbered(argument: object) -> object:
            if isinstance(argument, Operand):
                return Operand(operands.setdefault(argument.index, len(operands)))
            if isinstance(argument, Number):
                return Number(numbers.setdefault(argument.index, len(numbers)))
            if isinstance(argument, (list, tuple)):
                return tuple(renumbered(argument[element]) for element in elements) if argument else ()
            return argument

        plan = self.plan
        args, kwargs = plan.arguments
        arguments = tuple(map(renumbered, args)), {name: renumbered(value) for name, value in kwargs.items()}
        outputs = [self.outputs[element][nth] for nth in range(len(self.outputs[0])) for element in elements]
        part = Plan(
            plan.op,
            arguments,
            tuple(plan.operands[index] for index in operands),
            tuple(plan.numbers[index] for index in numbers),
            tuple(plan.outputs[index] for index in outputs),
            tuple(count if count <= 0 else len(elements) for count in plan.structure),
            plan.compute_dtype,
        )
        return interned(part), list(operands), list(numbers), outputs
