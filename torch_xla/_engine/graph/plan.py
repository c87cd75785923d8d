"""A plan: one recorded call without its operands and numbers. Equal calls share one plan object."""

from dataclasses import dataclass
from typing import Any

from .spec import Spec


@dataclass(frozen=True, slots=True)
class Operand:
    """Stands in a plan's arguments for the operand with this position."""

    index: int


@dataclass(frozen=True, slots=True)
class Number:
    """Stands in a plan's arguments for the number with this position: baked in, or an argument of the program."""

    index: int


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """What a call does, apart from which values it reads. Compared by identity: the recorder interns plans.

    `arguments` is the call's (args, kwargs) with `Operand` and `Number` in place of values. `structure` tells how the
    flat `outputs` nest in what the rule returns: one int per result, -1 for an array, n for a list of n arrays and -2
    for a result that is not wanted. `replaces` tells which operand each output takes the place of (-1: none), where the
    arguments do not.
    """

    op: Any
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    operands: tuple[Spec, ...]
    numbers: tuple[type, ...]
    outputs: tuple[Spec, ...]
    structure: tuple[int, ...] = (-1,)
    compute_dtype: Any = None
    random: bool = False
    replaces: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"<plan of {self.op}>"
