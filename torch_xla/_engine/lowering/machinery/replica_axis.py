"""Tell a rule along which mesh axis processes exchange values."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

from ...runtime.device_assignment import Target
from .barrier import behind, behind_in_place, zero_of

_lowering = threading.local()


@contextmanager
def lowering_for(target: Target | None) -> Iterator[None]:
    """Lower for `target` within a `with` block; without one, for one device that computes alone."""
    before = getattr(_lowering, "target", None), getattr(_lowering, "latest", None)
    _lowering.target, _lowering.latest = target, None
    try:
        yield
    finally:
        _lowering.target, _lowering.latest = before


def target_in_use() -> Target | None:
    """Return the target of the program that is being lowered; `None` outside of a lowering."""
    target: Target | None = getattr(_lowering, "target", None)
    return target


def spread_target() -> Target | None:
    """Return the target of the program that is being lowered, if XLA divides its arrays among devices; else `None`."""
    target = target_in_use()
    return target if target is not None and target.is_spread else None


def axis() -> str:
    """Return the name of the axis for `jax.lax.psum` and its like; raises where a program has none."""
    target = target_in_use()
    if target is None or target.axis is None:
        raise RuntimeError("a collective was lowered for a program that runs in one process; please report it")
    return target.axis


def begin(unknown: jax.Array) -> None:
    """Let the first collective depend on `unknown`, an argument of the program that differs from process to process.

    A constant may differ too: a number that the process wrote into its program. XLA takes constants for equal in all
    processes, and leaves out collectives of them.
    """
    _lowering.latest = unknown


def end() -> jax.Array:
    """Return a zero that depends on all collectives. As a result of the program, it keeps collectives alive."""
    return zero_of(_lowering.latest).reshape(1)


def in_order(exchange: Callable[[jax.Array], jax.Array], array: jax.Array, *, in_place: bool = False) -> jax.Array:
    """Lower `exchange(array)`, a collective, after the collective that was lowered before it.

    Processes must execute the collectives in the same order, even if their programs differ elsewhere, and XLA orders
    independent operations freely. So the array depends on the numbers in the last result. With `in_place` only the
    array's
    first element does, which costs nothing if the array was computed only for this.
    """
    before = getattr(_lowering, "latest", None)
    wait = behind_in_place if in_place else behind
    result = exchange(array if before is None else wait(array, before))
    _lowering.latest = result
    return result
