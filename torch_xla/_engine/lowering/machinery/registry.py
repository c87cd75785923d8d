"""The table of lowering rules: from an aten overload to a function on JAX arrays.

A rule has the signature of its aten schema. Tensors arrive as JAX arrays of the tensor's logical shape, lists of
tensors as lists of arrays, `None` as `None`, everything else as plain Python (`torch.dtype` stays `torch.dtype`).
Arguments named in `NEVER_ARRIVE` never arrive, whether they are written by place or by name. Results are cast to the
dtype that PyTorch's meta kernel reports: a rule computes at the right precision and leaves the last cast to the caller.
"""

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, TypeVar

from ...caching.interning import drop_rules, look_through
from ...compat.names import jax as private
from ...compat.names.torch import OpOverload, schema_of
from ...ir.call_plan import Plan

Lower = TypeVar("Lower", bound=Callable[..., Any])

# Arguments that no rule takes: a generator gives a call its key, and the caller decides device and memory of results.
NEVER_ARRIVE = frozenset(("device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"))


class Promotion(Enum):
    """The type promotion of tensor operands before a rule receives them."""

    NONE = auto()  # they arrive as they are
    COMMON = auto()  # all are cast to PyTorch's common dtype of the tensors and numbers among the arguments
    FLOAT = auto()  # as COMMON, and an integer or bool common dtype becomes the default float dtype


@dataclass(frozen=True, slots=True)
class Rule:
    """How one overload becomes JAX operations."""

    op: Hashable  # an overload; a string for an operation of our own
    lower: Callable[..., Any]
    promotion: Promotion
    random: bool  # the rule takes a keyword `key`: a typed JAX random key, another one at every call
    separable: bool = False  # each element of its lists is computed alone, so that the lists may be cut anywhere
    calls_python: bool = False  # on the host, while the program runs
    rate: tuple[int, str] | None = None  # place and name of an argument: a call where it is 0 draws nothing

    def draws(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Return whether a call with these arguments takes a random key. A rate that may be any number is not 0."""
        if not self.random or self.rate is None:
            return self.random
        place, name = self.rate
        given = args[place] if place < len(args) else kwargs.get(name, 0)
        return not isinstance(given, int | float) or given != 0


_rules: dict[Hashable, Rule] = {}
_made: dict[Hashable, Rule] = {}  # while the program runs
look_through(lambda: drop_rules(_made), 0)

# The number of jaxprs of functions called by rules that JAX may keep when the caches are checked.
_MOST_TRACES = 4096


def _drop_traces() -> int:
    private.drop_traces(_MOST_TRACES)
    return 0


look_through(_drop_traces, 3)


def lowers(
    *ops: OpOverload | str,
    promotion: Promotion = Promotion.NONE,
    random: bool = False,
    separable: bool = False,
    rate: tuple[int, str] | None = None,
) -> Callable[[Lower], Lower]:
    """Register the decorated function as the rule of each of `ops`; a second rule for an op is an error."""

    def register(lower: Lower) -> Lower:
        for op in ops:
            if op in _rules:
                raise ValueError(f"{op} has two rules: {_rules[op].lower} and {lower}")
            _rules[op] = Rule(op, lower, promotion, random, separable, rate=rate)
        return lower

    return register


# Rules of operators that PyTorch defines when a module of its own is imported, which we leave to its users.
_later: dict[str, Rule] = {}


def lowers_named(*names: str) -> Callable[[Lower], Lower]:
    """Register the decorated function as the rule of operators that may not exist yet: "space::name.overload"."""

    def register(lower: Lower) -> Lower:
        for name in names:
            if name in _later:
                raise ValueError(f"{name} has two rules: {_later[name].lower} and {lower}")
            _later[name] = Rule(name, lower, Promotion.NONE, False)
        return lower

    return register


def _arrived(op: object) -> Rule | None:
    found = _later.get(op.name()) if isinstance(op, OpOverload) else None
    if found is not None:
        found = _rules[op] = replace(found, op=op)
    return found


def add_rule(rule: Rule) -> Rule:
    """Add a rule that is created while the program runs, such as a decomposition at certain sizes.

    It stays as long as something else holds it, or its `op`: plans must hold that very object.
    """
    return _made.setdefault(rule.op, rule)


def rule_of(op: object) -> Rule | None:
    """Return the rule of exactly this overload; never a sibling's."""
    return _rules.get(op) or _made.get(op) or _arrived(op)


@functools.cache
def _places_that_arrive(op: OpOverload) -> tuple[bool, ...]:
    """Return for each argument of the schema whether a rule takes it; nothing if a rule takes all that have a place."""
    arguments = schema_of(op).arguments
    if not any(each.name in NEVER_ARRIVE and not each.kwarg_only for each in arguments):
        return ()
    return tuple(each.name not in NEVER_ARRIVE for each in arguments)


def that_arrive(op: object, args: tuple[object, ...]) -> tuple[object, ...]:
    """Return the positional arguments of a call that a rule takes."""
    arrive = _places_that_arrive(op)
    return tuple(argument for argument, does in zip(args, arrive, strict=False) if does) if arrive else args


def names_to_come() -> list[str]:
    """Return the operators with a rule that PyTorch may define later, by name."""
    return list(_later)


def calls_python(plan: Plan) -> bool:
    """Return whether a call, or one inside it, calls Python on the host while the program runs."""
    # In a graph of PyTorch's an operation of our own is an argument: its name.
    names = plan.op, *[each for each in plan.arguments[0] if each.__class__ is str]
    rules = [_rules.get(name) or _made.get(name) for name in names]
    inner = plan.inside() if plan.inside is not None else None
    return any(rule is not None and rule.calls_python for rule in rules) or (
        inner is not None and any(calls_python(each.plan) for each in inner.operations)
    )


def is_separable(op: object) -> bool:
    """Return whether the operation computes each element of its lists separately."""
    rule = rule_of(op)
    return rule is not None and rule.separable


def all_rules() -> dict[Hashable, Rule]:
    """Return every rule, by overload, but those made while the program runs: for the coverage page and the tests."""
    return dict(_rules)
