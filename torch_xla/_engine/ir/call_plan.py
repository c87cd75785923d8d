"""A plan: one recorded call without its operands and numbers. Equal calls share one plan object."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ..caching.interning import table_of_plans
from .side_effects import Effect
from .value_spec import Spec


@dataclass(frozen=True, slots=True)
class Operand:
    """Stands in a plan's arguments for the operand with this position."""

    index: int


@dataclass(frozen=True, slots=True)
class Number:
    """Stands in a plan's arguments for the number with this position: baked in, or an argument of the program."""

    index: int


class Recorded(Protocol):
    """An operation of a graph, as far as a plan knows it."""

    @property
    def plan(self) -> "Plan":
        """Return the plan of the call."""


class Composed(Protocol):
    """The graph inside a composite: `ir.graph.Graph`, which is made of plans."""

    @property
    def operations(self) -> Sequence[Recorded]:
        """Return its operations, in order."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Plan:
    """The description of a call without the values that it reads. Compared by identity: the recorder interns plans.

    `arguments` is the call's (args, kwargs) with `Operand` and `Number` in place of values. `structure` describes how
    the flat `outputs` nest in the rule's result: one int per result, -1 for an array, n for a list of n arrays and -2
    for an unwanted result. `replaces` is the operand that each output overwrites (-1: none), where the arguments do not
    show it. `draws` counts the random keys that it uses. `inside` returns the graph of smaller operations, with as many
    inputs and outputs, if the plan is a composite; else `None`. `effect` is its side effect: an operation with one runs
    once, whether or not its outputs are used.
    """

    op: Hashable
    arguments: tuple[tuple[object, ...], dict[str, object]]
    operands: tuple[Spec, ...]
    numbers: tuple[type, ...]
    outputs: tuple[Spec, ...]
    structure: tuple[int, ...] = (-1,)
    compute_dtype: torch.dtype | None = None
    draws: int = 0
    inside: "Callable[[], Composed | None] | None" = None
    replaces: tuple[int, ...] | None = None
    effect: Effect | None = None

    def __repr__(self) -> str:
        return f"<plan of {self.op}>"


# Plans that are made again from the same parts share one object.
_plans: dict[Hashable, Plan] = {}
table_of_plans(_plans)


def interned(plan: Plan) -> Plan:
    """Return the one plan that does what `plan` does, whose arguments can be hashed."""
    args, kwargs = plan.arguments
    # 1, 1.0 and True are equal, but not the same argument.
    named = tuple((name, _kinds(value)) for name, value in kwargs.items())
    arguments = _kinds(args), named
    form = plan.operands, plan.numbers, plan.outputs, plan.structure, plan.compute_dtype, plan.draws, plan.replaces
    return _plans.setdefault((plan.op, arguments, form, plan.effect), plan)


def kinds_of(arguments: tuple[object, ...]) -> tuple[Hashable, ...]:
    """Return a key that differs for equal arguments of different kinds: 1, 1.0 and True; 0.0 and -0.0."""
    return tuple((type(each), repr(each) if isinstance(each, float | complex) else "") for each in arguments)


def _kinds(argument: object) -> Hashable:
    if isinstance(argument, tuple):
        return tuple(map(_kinds, argument))
    # 0.0 and -0.0 are equal too.
    return type(argument), repr(argument) if isinstance(argument, float | complex) else argument
