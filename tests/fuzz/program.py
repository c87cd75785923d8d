"""Random programs: calls that the CPU accepts, and now and then one that it refuses."""

import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .operators import Call, Known, write_call

# Larger numbers leave the range in which sums of whole numbers are exact in every dtype.
MOST = 200.0
MOST_ELEMENTS = 300
SHARE_OF_MISTAKES = 0.1


@dataclass(frozen=True)
class Line:
    """One statement. `name` is the tensor it makes, if any; `raises` the exception it must raise."""

    source: str
    name: str = ""
    raises: str = ""
    operands: tuple[str, ...] = ()
    target: str = ""
    keeps_exact: bool = True

    @property
    def text(self) -> str:
        """As it stands in a program."""
        return f"{self.name} = {self.source}" if self.name else self.source

    def uses(self, name: str) -> bool:
        """Whether it needs the tensor `name`."""
        return re.search(rf"\b{name}\b", self.source) is not None


@dataclass
class State:
    """What running a program left behind."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    error: Exception | None = None
    failed_at: int = -1


def run(lines: list[Line], device: str, sync: Callable[[], None], read: Callable[[Tensor], Any]) -> State:
    """Runs the lines on `device`. Stops at the first that raises without having to, or does not although it has to."""
    space: dict[str, Any] = {"torch": torch, "device": device, "sync": sync, "read": read}
    state = State()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for index, line in enumerate(lines):
            try:
                exec(line.text, space)  # noqa: S102
            except Exception as error:
                if type(error).__name__ == line.raises:
                    continue
                state.error, state.failed_at = error, index
                break
            if line.raises:
                state.error, state.failed_at = AssertionError(f"did not raise {line.raises}"), index
                break
    state.tensors = {name: value for name, value in space.items() if isinstance(value, Tensor)}
    return state


def on_the_cpu(lines: list[Line]) -> State:
    """The program on the CPU, where nothing waits to be run."""
    return run(lines, "cpu", lambda: None, lambda tensor: None)


def write_program(seed: int, length: int) -> list[Line]:
    """A program of `length` lines."""
    dice = random.Random(seed)
    lines: list[Line] = []
    known: list[Known] = []
    while len(lines) < length:
        call = write_call(dice, known)
        if call is None or (call.needs_exact and not all(k.exact for k in call.operands)):
            continue
        line = _line(call, f"t{len(lines)}")
        state = on_the_cpu([*lines, line])
        if state.failed_at < 0 and all(map(_is_tame, state.tensors.values())):
            lines.append(line)
        elif state.failed_at >= 0 and dice.random() < SHARE_OF_MISTAKES and _tells_a_mistake(state.error):
            lines.append(replace(line, name="", raises=type(state.error).__name__))
        else:
            continue
        known = _known(lines)
    return lines


def _line(call: Call, name: str) -> Line:
    makes = call.target is None and not call.source.startswith(("sync(", "read("))
    operands = tuple(k.name for k in call.operands)
    target = call.target.name if call.target is not None else ""
    return Line(call.source, name if makes else "", "", operands, target, call.keeps_exact)


def _known(lines: list[Line]) -> list[Known]:
    """The tensors a program leaves, found by running it line by line. Exactness belongs to a storage."""
    space: dict[str, Any] = {"torch": torch, "device": "cpu", "sync": lambda: None, "read": lambda tensor: None}
    rounded: set[int] = set()
    kept: list[Any] = []  # so that no storage takes the place of another
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for line in lines:
            exact = line.keeps_exact and not any(_storage(space[name]) in rounded for name in line.operands)
            kept += [space[name].untyped_storage() for name in line.operands]
            try:
                exec(line.text, space)  # noqa: S102
            except Exception:
                assert line.raises
            for name in (line.name, line.target):
                if name and not exact:
                    rounded.add(_storage(space[name]))
    tensors = {name: value for name, value in space.items() if isinstance(value, Tensor)}
    return [Known(name, value, _storage(value) not in rounded) for name, value in tensors.items()]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tells_a_mistake(error: Exception | None) -> bool:
    return type(error) in (RuntimeError, IndexError, TypeError, ValueError)


def _is_tame(tensor: Tensor) -> bool:
    if tensor.numel() > MOST_ELEMENTS:
        return False
    if tensor.dtype is torch.bool or not tensor.numel():
        return True
    magnitude = tensor.resolve_conj().resolve_neg().abs().double()
    return bool((magnitude.nan_to_num(0, 0, 0) <= MOST).all())
