"""Named scopes: what is recorded inside one carries its name into metadata and profiles.

Opening and closing a scope leaves a mark on the tape of this thread's device; recording itself does not look at them.
"""

import threading
from bisect import bisect_right

from ..compile.source_metadata import scopes_at
from ..ir.graph import decode
from ..ir.tape import Value
from ..tensor.device import LOCK, current_index, device_at


class _Open(threading.local):
    scopes: tuple[str, ...] = ()  # that this thread has open, outermost first


open_here = _Open()


class Passing(str):
    """A scope that the user did not open, such as a module's while it is profiled: a step may end inside of it."""

    __slots__ = ()


def refuse_open_scopes() -> None:
    """Raise `RuntimeError` where a step would end inside of scopes that the user has opened in this thread."""
    if all(isinstance(name, Passing) for name in open_here.scopes):
        return
    names = "/".join(f"{name}.{depth}" for depth, name in enumerate(open_here.scopes, 1))
    raise RuntimeError(
        f"Expecting scope to be empty but it is {names}: a step ends here, inside of a block that is open "
        "(torch_xla.debug.profiler.Trace). End the block before the step, use StepTrace for a block that is a step, "
        "or call torch_xla.sync(reset_scope=False), which leaves the block open."
    )


def open_scope(name: str) -> None:
    """Begin the scope `name` inside those this thread has open."""
    _mark((*open_scopes(), name))


def close_scope() -> None:
    """End the innermost scope of this thread."""
    _mark(open_scopes()[:-1])


def open_scopes() -> tuple[str, ...]:
    """Return the scopes this thread has open, outermost first."""
    return open_here.scopes


def name_operation(value: Value, name: str) -> bool:
    """Put the pending operation that makes `value` into the scope `name`, inside its open scopes.

    Return False if no operation is pending for `value`.
    """
    with LOCK:
        tape = value.tape
        if value.state != "pending" or tape is None or tape.ended:
            return False
        _, operations, producer = decode(tape.code)
        if producer[value.slot] < 0:
            return False
        position = operations[producer[value.slot]].position
        starts = [start for start, _ in tape.scopes]
        (before,) = scopes_at([position], tape.scopes) or [()]
        if position + 1 not in starts:
            tape.scopes.insert(bisect_right(starts, position), (position + 1, before))
        if position in starts:
            tape.scopes[starts.index(position)] = position, (*before, name)
        else:
            tape.scopes.insert(bisect_right(starts, position), (position, (*before, name)))
        return True


def _mark(scopes: tuple[str, ...]) -> None:
    open_here.scopes = scopes
    tape = device_at(current_index()).tape
    position = len(tape.code)
    if tape.scopes and tape.scopes[-1][0] == position:
        tape.scopes.pop()
    if scopes or tape.scopes:
        tape.scopes.append((position, scopes))
