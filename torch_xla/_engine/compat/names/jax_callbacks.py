"""Find, order or remove the callbacks in a traced JAX function, for which JAX has no public way."""

from collections.abc import Callable, Hashable
from typing import Any

from jax._src import callback as _callback
from jax._src import debugging as _debugging
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

_UNORDERED: dict[Hashable, object] = {
    _debugging.debug_effect: _debugging.ordered_debug_effect,
    _callback._IOEffect: _callback._OrderedIOEffect,
}
_CALLBACKS = frozenset((*_UNORDERED, *_UNORDERED.values()))

# JAX's text of a traced function contains this for each callback, whatever the callback is.
HIDDEN = "0xXXXXXXXXXXXX"


def calls_back(closed: Any) -> bool:
    """Return whether a traced function calls Python on the host for its side effects."""
    return not _CALLBACKS.isdisjoint(closed.effects)


def calls_python(closed: object) -> bool:
    """Return whether a traced function calls Python on the host at all, also only for a result."""
    return calls_back(closed) or _calls_for_results(closed)


def _calls_for_results(part: object) -> bool:
    part = opened(part)
    if part.__class__ is tuple:
        return any(map(_calls_for_results, part))
    if not isinstance(part, Jaxpr):
        return False
    return any(
        each.primitive is _callback.pure_callback_p or any(map(_calls_for_results, each.params.values()))
        for each in part.eqns
    )


def in_order(closed: object) -> object:
    """Return the same function, all of whose callbacks are made in the order in which they were traced."""

    def change(equation: JaxprEqn) -> JaxprEqn:
        params = dict(equation.params)
        if equation.primitive is _debugging.debug_callback_p:
            params["effect"] = _debugging.ordered_debug_effect
        elif "ordered" in params and not _CALLBACKS.isdisjoint(equation.effects):
            params["ordered"] = True
        return equation.replace(params=params)

    return _changed(closed, change, lambda effects: frozenset(_UNORDERED.get(each, each) for each in effects))


def without_callbacks(closed: object) -> object:
    """Return the same function, which makes no callback whose result is not used."""

    def change(equation: JaxprEqn) -> JaxprEqn | None:
        is_for_its_effect = not equation.outvars and not _CALLBACKS.isdisjoint(equation.effects)
        return None if is_for_its_effect else equation

    return _changed(closed, change, lambda effects: frozenset(effects) - _CALLBACKS)


def opened(part: object) -> object:
    """Return a traced function without its constants; what is none as it is. In JAX 0.11 one class has both."""
    return part.jaxpr if isinstance(part, ClosedJaxpr) else part


def _changed(part: Any, change: Callable[[Any], Any], effects: Callable[[Any], frozenset[Any]]) -> Any:
    inside = opened(part)
    if inside is not part:
        return part.replace(jaxpr=_changed(inside, change, effects))
    if part.__class__ is tuple:  # not those with names, which are settings
        return tuple(_changed(each, change, effects) for each in part)
    if not isinstance(part, Jaxpr):
        return part
    equations = []
    for equation in part.eqns:
        found = change(equation)
        if found is not None:
            inside = {name: _changed(value, change, effects) for name, value in found.params.items()}
            equations.append(found.replace(params=inside, effects=effects(found.effects)))
    return part.replace(eqns=equations, effects=effects(part.effects))
