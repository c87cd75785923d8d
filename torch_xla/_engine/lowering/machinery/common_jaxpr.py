"""Derive one program of a symbolic size from a program's forms at two sizes.

A rule may ask anything of the sizes that it is given, so it is given numbers. Two traces of one function, at `n - 1`
and at `n`, differ in their sizes alone: a number that is `a * n + b` in both becomes that expression. The result is
what `padded_functions.bounded` evaluates. Traces that differ in anything else raise `NotImplementedError`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.extend as jex
import numpy as np

from .padded_functions import is_call

SYMBOL = "n"

# Parameters that are sizes or places; others, such as an axis, say what a call does.
_SIZE = "a size"
_SIZES = frozenset(
    (_SIZE, "shape", "new_sizes", "sizes", "slice_sizes", "start_indices", "limit_indices", "padding_config")
)


@dataclass(frozen=True, slots=True)
class _Shaped:
    shape: tuple[Any, ...]
    dtype: Any

    def str_short(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """A value of the common program: a variable, or a constant whose number is an expression of `n`."""

    aval: Any
    size: Any = None  # the expression; `None`: a variable


@dataclass(frozen=True, slots=True)
class Equation:
    """A call of the common program, with the attributes of JAX's own that its evaluation reads."""

    primitive: Any
    invars: Sequence[Any]
    outvars: Sequence[Any]
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Common:
    """The common program, with the attributes of JAX's `Jaxpr` and `ClosedJaxpr` that its evaluation reads."""

    constvars: Sequence[Any]
    invars: Sequence[Any]
    outvars: Sequence[Any]
    eqns: Sequence[Equation]
    consts: Sequence[Any]
    is_static: bool  # both traces were equal

    @property
    def jaxpr(self) -> "Common":
        """Return the program itself."""
        return self


def common(before: Any, after: Any, count: int) -> Common:
    """Return what the closed jaxprs `before` (of `n = count - 1`) and `after` (of `n = count`) have in common."""
    return _Pair(count, jax.export.symbolic_shape(SYMBOL)[0]).programs(before, after)


def _differ(what: str, before: object, after: object) -> NoReturn:
    raise NotImplementedError(f"the program is another one at another size: {what} is {before}, and then {after}")


@dataclass(frozen=True, slots=True)
class _Pair:
    count: int
    symbol: Any

    def programs(self, before: Any, after: Any) -> Common:
        if len(before.jaxpr.eqns) != len(after.jaxpr.eqns):
            _differ("its length", len(before.jaxpr.eqns), len(after.jaxpr.eqns))
        consts = [self._constant(*pair) for pair in zip(before.consts, after.consts, strict=True)]
        known: dict[Any, tuple[Any, Any]] = {}  # variables of the second, with those of the first

        def made(old: Any, new: Any) -> Any:
            found = Atom(self._shaped(old.aval, new.aval))
            known[new] = old, found
            return found

        def read(old: Any, new: Any) -> Any:
            if isinstance(new, jex.core.Literal):
                return self._literal(old, new)
            if new not in known or known[new][0] is not old:
                _differ("an operand", old, new)
            return known[new][1]

        def all_of(make: Callable[[Any, Any], Any], old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
            return [make(*pair) for pair in zip(old, new, strict=True)]

        constvars = all_of(made, before.jaxpr.constvars, after.jaxpr.constvars)
        invars = all_of(made, before.jaxpr.invars, after.jaxpr.invars)
        equations, is_static = [], True
        for old, new in zip(before.jaxpr.eqns, after.jaxpr.eqns, strict=True):
            if old.primitive is not new.primitive or len(old.invars) != len(new.invars):
                _differ("a call", old.primitive, new.primitive)
            taken = all_of(read, old.invars, new.invars)
            params = self._params(old, new)
            given = all_of(made, old.outvars, new.outvars)
            equations.append(Equation(new.primitive, taken, given, params))
            is_static = is_static and all(params[name] is new.params[name] for name in params)
            is_static = is_static and all(isinstance(atom, jex.core.Literal) or _is_static(atom) for atom in taken)
        outvars = all_of(read, before.jaxpr.outvars, after.jaxpr.outvars)
        is_static = is_static and all(isinstance(atom, jex.core.Literal) or _is_static(atom) for atom in outvars)
        return Common(constvars, invars, outvars, equations, consts, is_static)

    def _params(self, old: Any, new: Any) -> dict[str, Any]:
        if is_call(new.primitive.name):
            return {
                name: self._value(name, old.params[name], value)
                for name, value in new.params.items()
                if name in ("jaxpr", "call_jaxpr", "fun_jaxpr")
            }
        return {name: self._value(name, old.params[name], value) for name, value in new.params.items()}

    def _value(self, name: str, old: Any, new: Any) -> Any:
        """Return a parameter with expressions for what differs; `new` itself if nothing does."""
        if old is new:
            return new
        if type(old) is not type(new):
            _differ(name, old, new)
        if isinstance(new, int | np.integer) and not isinstance(new, bool):
            if old != new and name not in _SIZES:
                _differ(name, old, new)
            return self.number(int(old), int(new)) if old != new else new
        if isinstance(new, jex.core.ClosedJaxpr):
            found = self.programs(old, new)
            return new if found.is_static else found
        if isinstance(new, jex.core.Jaxpr):
            found = self.programs(jex.core.ClosedJaxpr(old, ()), jex.core.ClosedJaxpr(new, ()))
            return new if found.is_static else found
        if type(new) in (tuple, list):
            if len(old) != len(new):
                _differ(name, old, new)
            parts = [self._value(name, *pair) for pair in zip(old, new, strict=True)]
            return new if all(part is own for part, own in zip(parts, new, strict=True)) else type(new)(parts)
        if isinstance(new, np.ndarray | jax.Array):
            return self._constant(old, new)
        if old != new:
            _differ(name, old, new)
        return new

    def number(self, old: int, new: int) -> Any:
        """Return the expression that is `old` one step before, and `new` at the end."""
        slope = new - old
        return slope * self.symbol + (new - slope * self.count)

    def _shaped(self, old: Any, new: Any) -> Any:
        if not hasattr(new, "shape"):
            return new
        if len(old.shape) != len(new.shape) or old.dtype != new.dtype:
            _differ("a value", old, new)
        if old.shape == new.shape:
            return new
        shape = tuple(self._value(_SIZE, *pair) for pair in zip(old.shape, new.shape, strict=True))
        return _Shaped(shape, new.dtype)

    def _literal(self, old: Any, new: Any) -> Any:
        if not isinstance(old, jex.core.Literal):
            _differ("an operand", old, new)
        before, after = np.asarray(old.val), np.asarray(new.val)
        if before.dtype == after.dtype and before.tobytes() == after.tobytes():
            return new
        if before.dtype != after.dtype or before.dtype == np.bool_:
            _differ("a constant", before, after)
        if int(before) != before or int(after) != after:
            _differ("a constant", before, after)
        return Atom(new.aval, self.number(int(before), int(after)))

    def _constant(self, old: Any, new: Any) -> Any:
        before, after = np.asarray(old), np.asarray(new)
        if before.dtype != after.dtype or before.shape != after.shape or before.tobytes() != after.tobytes():
            _differ("a constant", before.shape, after.shape)
        return new


def _is_static(atom: Atom) -> bool:
    return atom.size is None and all(isinstance(size, int) for size in getattr(atom.aval, "shape", ()))
