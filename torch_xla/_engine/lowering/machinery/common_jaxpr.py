"""Derive one program of a symbolic size from a program's forms at several sizes.

A rule may ask anything of the sizes that it is given, so it is given numbers. Traces of one function at several `n`
differ in their sizes alone: a number that is `a * n + b` in all of them becomes that expression. The result is
what `padded_functions.bounded` evaluates. Traces that differ in anything else raise `NotImplementedError`.

Two neighbours give `a` and `b`. The least `n` shows that no size is halved, rounded up or compared with a bound on the
way: such a function of `n`, if it is monotone, is linear between two places only if it is so at both.
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

    constvars: Sequence["Atom"]
    invars: Sequence["Atom"]
    outvars: Sequence["Atom"]
    eqns: Sequence[Equation]
    consts: Sequence[Any]
    is_static: bool  # all traces were equal

    @property
    def jaxpr(self) -> "Common":
        """Return the program itself."""
        return self


def common(traces: Sequence[object], counts: Sequence[int]) -> Common:
    """Return what closed jaxprs of `n` equal to each of `counts` have in common; the last two counts are neighbours."""
    return _Traces(tuple(counts), jax.export.symbolic_shape(SYMBOL)[0]).programs(traces)


def _differ(what: str, seen: Sequence[object]) -> NoReturn:
    raise NotImplementedError(
        f"the program is another one at another size: {what} is {', and then '.join(map(str, seen))}"
    )


def _zipped(parts: Sequence[Sequence[object]], what: str) -> list[tuple[Any, ...]]:
    """Return the parts of each trace beside those of the others."""
    lengths = [len(each) for each in parts]
    if len(set(lengths)) > 1:
        _differ(what, lengths)
    return list(zip(*parts, strict=True))


@dataclass(frozen=True, slots=True)
class _Traces:
    """Finds what traces have in common. A sequence of parts has the same part of each trace."""

    counts: tuple[int, ...]
    symbol: Any

    def programs(self, traces: Sequence[Any]) -> Common:
        jaxprs = [trace.jaxpr for trace in traces]
        consts = [self._constant(each) for each in _zipped([trace.consts for trace in traces], "its constants")]
        known: dict[Any, tuple[tuple[Any, ...], Any]] = {}  # variables of the last, with those of all

        def made(variables: tuple[Any, ...]) -> Atom:
            found = Atom(self._shaped([each.aval for each in variables]))
            known[variables[-1]] = variables, found
            return found

        def read(atoms: tuple[object, ...]) -> Atom:
            if isinstance(atoms[-1], jex.core.Literal):
                return self._literal(atoms)
            if atoms[-1] not in known or any(a is not b for a, b in zip(known[atoms[-1]][0], atoms, strict=True)):
                _differ("an operand", atoms)
            return known[atoms[-1]][1]

        def all_of(make: Callable[[Any], Any], atoms: Sequence[Sequence[object]]) -> list[Atom]:
            return [make(each) for each in _zipped(atoms, "the number of values")]

        constvars = all_of(made, [jaxpr.constvars for jaxpr in jaxprs])
        invars = all_of(made, [jaxpr.invars for jaxpr in jaxprs])
        equations, is_static = [], True
        for equation in _zipped([jaxpr.eqns for jaxpr in jaxprs], "its length"):
            new = equation[-1]
            if any(each.primitive is not new.primitive for each in equation):
                _differ("a call", [each.primitive for each in equation])
            taken = all_of(read, [each.invars for each in equation])
            params = self._params(equation)
            given = all_of(made, [each.outvars for each in equation])
            equations.append(Equation(new.primitive, taken, given, params))
            is_static = is_static and all(params[name] is new.params[name] for name in params)
            is_static = is_static and all(isinstance(atom, jex.core.Literal) or _is_static(atom) for atom in taken)
        outvars = all_of(read, [jaxpr.outvars for jaxpr in jaxprs])
        is_static = is_static and all(isinstance(atom, jex.core.Literal) or _is_static(atom) for atom in outvars)
        return Common(constvars, invars, outvars, equations, consts, is_static)

    def _params(self, equation: Sequence[Any]) -> dict[str, Any]:
        new = equation[-1]
        inner = ("jaxpr", "call_jaxpr", "fun_jaxpr")
        names = [name for name in new.params if name in inner] if is_call(new.primitive.name) else list(new.params)
        return {name: self._value(name, [each.params[name] for each in equation]) for name in names}

    def _value(self, name: str, seen: Sequence[Any]) -> Any:
        """Return a parameter with expressions for what differs; the last of `seen` if nothing does."""
        new = seen[-1]
        if all(each is new for each in seen):
            return new
        if len(set(map(type, seen))) > 1:
            _differ(name, seen)
        if isinstance(new, int | np.integer) and not isinstance(new, bool):
            if any(each != new for each in seen):
                return self.number(seen, name) if name in _SIZES else _differ(name, seen)
            return new
        if isinstance(new, jex.core.ClosedJaxpr):
            found = self.programs(seen)
            return new if found.is_static else found
        if isinstance(new, jex.core.Jaxpr):
            found = self.programs([jex.core.ClosedJaxpr(each, ()) for each in seen])
            return new if found.is_static else found
        if type(new) in (tuple, list):
            parts = [self._value(name, each) for each in _zipped(seen, name)]
            return new if all(part is own for part, own in zip(parts, new, strict=True)) else type(new)(parts)
        if isinstance(new, np.ndarray | jax.Array):
            return self._constant(seen)
        if any(each != new for each in seen):
            _differ(name, seen)
        return new

    def number(self, seen: Sequence[Any], what: str) -> Any:
        """Return the expression that has these values."""
        slope = int(seen[-1]) - int(seen[-2])
        rest = int(seen[-1]) - slope * self.counts[-1]
        if any(int(each) != slope * count + rest for each, count in zip(seen, self.counts, strict=True)):
            _differ(what, seen)
        return slope * self.symbol + rest

    def _shaped(self, seen: Sequence[Any]) -> _Shaped:
        new = seen[-1]
        if not hasattr(new, "shape"):
            return new
        if any(len(each.shape) != len(new.shape) or each.dtype != new.dtype for each in seen):
            _differ("a value", seen)
        if all(each.shape == new.shape for each in seen):
            return new
        return _Shaped(
            tuple(self._value(_SIZE, sizes) for sizes in zip(*(a.shape for a in seen), strict=True)), new.dtype
        )

    def _literal(self, seen: Sequence[Any]) -> Atom:
        if not all(isinstance(each, jex.core.Literal) for each in seen):
            _differ("an operand", seen)
        numbers = [np.asarray(each.val) for each in seen]
        dtype = numbers[-1].dtype
        if any(each.dtype != dtype for each in numbers):
            _differ("a constant", numbers)
        if all(each.tobytes() == numbers[-1].tobytes() for each in numbers):
            return seen[-1]
        if dtype == np.bool_ or any(int(each) != each for each in numbers):
            _differ("a constant", numbers)
        return Atom(seen[-1].aval, self.number(numbers, "a constant"))

    def _constant(self, seen: Sequence[object]) -> object:
        arrays = [np.asarray(each) for each in seen]
        new = arrays[-1]
        if any(a.dtype != new.dtype or a.shape != new.shape or a.tobytes() != new.tobytes() for a in arrays):
            _differ("a constant", [each.shape for each in arrays])
        return seen[-1]


def _is_static(atom: Atom) -> bool:
    return atom.size is None and all(isinstance(size, int) for size in getattr(atom.aval, "shape", ()))
