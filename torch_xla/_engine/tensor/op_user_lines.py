"""Keep the user's line of each operation while a tape is new."""

import os
import sys
from collections.abc import Iterator, Sequence
from threading import get_ident
from types import FrameType

import torch
from torch import optim

from ..ir.tape import Tape
from ..metrics.user_lines import OptimizersLine, is_ours, user_line

_OPTIMIZERS = os.path.dirname(os.path.abspath(optim.__file__)) + os.sep
# The functions of operators that are called by their names, `torch.ops.xla.…`.
_OPERATORS = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "_ops.py")


def note_line(tape: Tape, position: int, numbers: Sequence[object] = ()) -> None:
    """Keep the line and the thread of the next operation, where the tape leaves the path it took last time."""
    tape.expected = None
    if tape.turns[-1][1] != (thread := get_ident()):
        tape.turns.append((position, thread))
    line = user_line()
    tape.lines[position] = OptimizersLine(line) if numbers and _is_called_by_an_optimizer() else line


def _is_called_by_an_optimizer() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (is_ours(name := frame.f_code.co_filename) or name == _OPERATORS):
        frame = frame.f_back
    return frame is not None and (frame.f_code.co_filename.startswith(_OPTIMIZERS) or is_of_an_optimizer(frame))


def is_of_an_optimizer(frame: FrameType) -> bool:
    """Return whether a method of an optimizer runs in a frame. Its locals are not read: a frame keeps a copy."""
    name = frame.f_code.co_qualname
    owner = frame.f_globals.get(name.partition(".")[0])
    if isinstance(owner, type):
        return issubclass(owner, optim.Optimizer)
    if "<locals>." not in name:
        return False
    # A class that a function has made: what the function is called says nothing.
    module = frame.f_globals.get("__name__")
    return any(
        each.__module__ == module and name.startswith(f"{each.__qualname__}.") for each in _below(optim.Optimizer)
    )


def _below(owner: type[optim.Optimizer]) -> Iterator[type[optim.Optimizer]]:
    for each in owner.__subclasses__():
        yield each
        yield from _below(each)
