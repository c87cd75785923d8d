"""Find the user's names of a program's inputs: variables, parameters and optimizer states.

Searched when a program is compiled, never in a step that runs again: the local variables of the user's frames are
searched, with the modules, optimizers and containers in them.
"""

import inspect
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from .. import metrics
from ..atomic import frames_of_threads, uncollected
from ..ir.graph import Operation, decode
from ..ir.input_output_alias import replaced_operands
from ..ir.tape import Tape, Value
from ..metrics.user_lines import is_users_own, user_frame

_MOST_FRAMES = 16
_TRAIN = tuple(os.path.join(torch.__path__[0], package, "") for package in ("autograd", "optim"))
_MOST_OBJECTS = 5000  # looked at in one search
_LONGEST_CONTAINER = 256
_PLAIN = ("builtins", "numpy", "torch", "jax", "jaxlib", "types", "threading")


class NameSearch:
    """Looks for the variables that lead to some buffers."""

    def __init__(self, buffers: Sequence[object]) -> None:
        self.missing = {id(buffer): index for index, buffer in enumerate(buffers)}
        self.names = [""] * len(buffers)
        self.seen: set[int] = set()
        self.tapes: dict[int, tuple[list[Operation], list[int]]] = {}

    @property
    def is_long(self) -> bool:
        """Return whether as many objects were looked at as may be."""
        return len(self.seen) > _MOST_OBJECTS

    @property
    def is_over(self) -> bool:
        """Return whether all are found, or enough was searched."""
        return not self.missing or self.is_long

    def visit(self, name: str, thing: Any, depth: int) -> None:
        """Visit the objects that a variable leads to, at most `depth` containers deep."""
        # `type(thing)` and not `isinstance`: a proxy would begin to work for us.
        kind = type(thing)
        if self.is_over or kind in (int, float, str, bool, bytes, type(None)) or id(thing) in self.seen:
            return
        self.seen.add(id(thing))
        try:
            if issubclass(kind, torch.Tensor):
                self.note(name, thing)
            elif issubclass(kind, torch.nn.Module):
                self._visit_module(name, thing, depth)
            elif issubclass(kind, torch.optim.Optimizer):
                self._visit_optimizer(name, thing)
            elif depth:
                for inner, element in _parts(name, thing):
                    self.visit(inner, element, depth - 1)
        except Exception:
            # An object of the user's that does not let itself be looked at costs a name, not all of them.
            metrics.count("NameNotFound")

    def note(self, name: str, tensor: torch.Tensor, is_state: bool = False) -> None:
        """Look at one tensor that a variable leads to."""
        value = value_of(tensor)
        if value is None:
            return
        buffer = self._before(value) if is_state and value.buffer is None else value.buffer
        index = self.missing.pop(id(buffer), None)
        if index is not None:
            self.names[index] = name
        if tensor.is_leaf and not _others_train() and (gradient := tensor.grad) is not None:
            self.note(f"{name}.grad", gradient)

    def _before(self, value: Value) -> object:
        """Return the buffer of a parameter or a state before it is overwritten by what is recorded and has not run."""
        tape: Tape | None = value.tape
        if tape is None or tape.ended:
            return None
        if id(tape) not in self.tapes:
            self.tapes[id(tape)] = decode(tape.code)[1:]
        operations, producer = self.tapes[id(tape)]
        slot = value.slot
        while producer[slot] >= 0:
            operation = operations[producer[slot]]
            part = slot - operation.first_output
            replaced = replaced_operands(operation.plan)[part]
            if replaced < 0:
                return None
            slot = operation.operands[replaced]
            if tape.values[slot].spec is not value.spec:
                return None
        return tape.values[slot].buffer

    def _visit_module(self, name: str, module: torch.nn.Module, depth: int) -> None:
        prefix = "" if name == "self" else f"{name}."
        for inner, tensor in (*module.named_parameters(), *module.named_buffers()):
            self.note(prefix + inner, tensor, is_state=True)
        if depth:
            for inner, element in _attributes(name, module):
                self.visit(inner, element, 0)

    def _visit_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        position = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for key, state in optimizer.state.get(parameter, {}).items():
                    if isinstance(state, torch.Tensor):
                        self.note(f"{name}.state[{position}][{key!r}]", state, is_state=True)
                position += 1


def _others_train() -> bool:
    """Return whether another thread is in the user's program, or in what looks at gradients.

    PyTorch ends the process when two threads look at a gradient: it gives it a Python object, and lets go of the
    interpreter's lock while it takes that away.
    """
    frames = frames_of_threads()
    frames.pop(threading.get_ident(), None)  # which would keep all callers, in a cycle with what holds it here
    return any(map(_may_train, frames.values()))


def _may_train(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_users_own(filename) or filename.startswith(_TRAIN):
            return True
        frame = frame.f_back
    return False


def value_of(tensor: torch.Tensor) -> Value | None:
    """Return what the memory of a tensor holds, if it is on one of our devices."""
    if tensor.device.type != "xla":
        return None
    try:
        return getattr(tensor.untyped_storage(), "value", None)
    except NotImplementedError:
        return None  # a tensor of a transform (`vmap`, `grad`): it has no memory of its own


def _parts(name: str, thing: Any) -> Iterator[tuple[str, object]]:
    kind = type(thing)
    if issubclass(kind, (list, tuple)):
        if len(thing) <= _LONGEST_CONTAINER:
            yield from ((f"{name}[{index}]", element) for index, element in enumerate(thing))
    elif issubclass(kind, dict):
        if len(thing) <= _LONGEST_CONTAINER:
            yield from ((f"{name}[{_key(key)}]", element) for key, element in list(thing.items()))
    elif kind.__module__.partition(".")[0] not in _PLAIN:
        yield from _attributes(name, thing)


def _key(key: object) -> str:
    """Return a key as it is written. The `repr` of other objects is not called: a tensor's would compute it, while the
    program that computes it is about to be compiled."""
    return repr(key) if type(key) in (int, float, str, bool, bytes, type(None)) else f"<{type(key).__name__}>"


def _attributes(name: str, thing: object) -> Iterator[tuple[str, Any]]:
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return
    if len(found) <= _LONGEST_CONTAINER:
        yield from ((f"{name}.{key}", element) for key, element in list(found.items()) if not key.startswith("_"))


@uncollected  # where garbage is collected another thread may come in, and take the gradient that PyTorch is showing us
def name_buffers(buffers: Sequence[object]) -> tuple[str, ...]:
    """Return each buffer's name in the user's program, or "" where no variable leads to it; inner frames first."""
    search = NameSearch(buffers)
    visit_variables(search)
    return tuple(search.names)


def visit_variables(search: NameSearch) -> None:
    """Show a search the variables of the user's frames, the innermost first; tensors go before what may hold them."""
    frame = user_frame(sys._getframe(1))
    for _ in range(_MOST_FRAMES):
        if frame is None or search.is_over:
            break
        for name, thing in sorted(_variables(frame).items(), key=_turn):
            search.visit(name, thing, 2)
        frame = user_frame(frame.f_back) if frame.f_back is not None else None


def _turn(variable: tuple[str, object]) -> tuple[bool, bool]:
    name, thing = variable
    return name == "self", not issubclass(type(thing), torch.Tensor)


def _variables(frame: FrameType) -> Mapping[str, object]:
    found = frame.f_locals
    copy = dict(found)
    is_snapshot = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and sys.version_info < (3, 13)
    # Before Python 3.13 the frame keeps this snapshot until its function returns, and with it every value in it: what
    # is held decides what a program computes. Empty it, unless `locals()` or a debugger holds it too.
    if is_snapshot and sys.gettrace() is None and sys.getrefcount(found) <= 3:
        found.clear()
    return copy
