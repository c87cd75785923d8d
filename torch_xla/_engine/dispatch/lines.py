"""The user's line behind an operation: the innermost frame that is neither PyTorch's nor ours."""

import os
import sys
from types import FrameType

import jax
import torch

from ..graph.tape import Tape

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_NOT_USERS = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(jax.__file__)) + os.sep,
    _PACKAGE + os.sep,
)

Line = tuple[str, int, str]

# Filenames are looked up for every frame of a new program: a dictionary answers faster than three prefixes.
_is_users: dict[str, bool] = {}


def user_frame(start: FrameType | None = None) -> FrameType | None:
    """The innermost frame of the user's program on this thread's stack; `None` in PyTorch's backward threads."""
    frame = start or sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        users = _is_users.get(filename)
        if users is None:
            users = _is_users[filename] = not filename.startswith((*_NOT_USERS, "<"))
        if users:
            return frame
        frame = frame.f_back  # type: ignore[assignment]
    return None


def user_line() -> Line:
    """File, line and function of the user's frame."""
    frame = user_frame(sys._getframe(1))
    if frame is None:
        return "<backward>", 0, "autograd"
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def note_line(tape: Tape, position: int) -> None:
    """Keeps the line of the operation about to be recorded: the tape has left the path it took last time."""
    tape.expected = None
    tape.lines[position] = user_line()


def text(line: Line) -> str:
    """As in "train.py:31 in step"."""
    return f"{line[0]}:{line[1]} in {line[2]}"
