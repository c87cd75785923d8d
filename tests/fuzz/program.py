"""Random programs: calls that the CPU accepts, and now and then one that it refuses."""

import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import settled
from .writer import Call, Known, Swarm, Writer

SHARE_OF_MISTAKES = 0.2
SHARE_WITH_GRADIENTS = 0.2
ELEMENTWISE = tuple(f"torch.{name}(" for name in "add sub mul maximum neg abs square eq gt div pow exp sigmoid".split())
DEEPEST = 3  # the largest number of roundings of an element


@dataclass(frozen=True)
class Line:
    """One statement. `name` is the tensor it makes, if any; `raises` the exception it must raise."""

    source: str
    name: str = ""
    raises: str = ""

    @property
    def text(self) -> str:
        """Return the line as it occurs in a program."""
        return f"{self.name} = {self.source}" if self.name else self.source

    def uses(self, name: str) -> bool:
        """Whether it needs the tensor `name`."""
        return re.search(rf"\b{name}\b", self.source) is not None


@dataclass(frozen=True)
class Program:
    """Lines, run with or without recording for the backward pass."""

    lines: tuple[Line, ...]
    gradients: bool = False


@dataclass
class State:
    """The state after running a program."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    read: list[Tensor] = field(default_factory=list)
    new_versions: dict[str, int] = field(default_factory=dict)  # when each tensor was made
    error: Exception | None = None
    failed_at: int = -1


def run(program: Program, device: str, sync: Callable[[], None]) -> State:
    """Runs the lines on `device`. Stops at the first that raises without having to, or does not although it has to."""
    state = State()
    space = _space(device, sync, state.read)
    with warnings.catch_warnings(), torch.set_grad_enabled(program.gradients):
        warnings.simplefilter("ignore")
        for index, line in enumerate(program.lines):
            try:
                exec(line.text, space)  # noqa: S102
            except Exception as error:
                if line.raises in (type(error).__name__, "Exception"):
                    continue
                state.error, state.failed_at = error.with_traceback(None), index
                break
            if line.raises:
                state.error, state.failed_at = AssertionError(f"did not raise {line.raises}"), index
                break
            if line.name:
                state.new_versions[line.name] = space[line.name]._version
    state.tensors = {name: value for name, value in space.items() if isinstance(value, Tensor)}
    return state


def _space(device: str, sync: Callable[[], None], read: list[Tensor]) -> dict[str, Any]:
    return {
        "torch": torch,
        "device": device,
        "sync": sync,
        "read": lambda tensor: read.append(settled.plain(tensor).cpu().clone()),
    }


def on_the_cpu(program: Program) -> State:
    """The program on the CPU, where nothing waits to be run."""
    return run(program, "cpu", lambda: None)


def write_program(dice: random.Random, swarm: Swarm, length: int) -> Program:
    """A program of `length` lines, and those of its backward pass."""
    draft = _Draft(dice, swarm, dice.random() < SHARE_WITH_GRADIENTS)
    for _ in range(60 * length):
        if len(draft.lines) >= length:
            break
        call = draft.writer.call()
        if call is not None:
            draft.consider(call)
    if draft.gradients:
        draft.go_backward()
    return Program(tuple(draft.lines), draft.gradients)


class _Draft:
    """A program that grows line by line, each tried on the CPU at once."""

    def __init__(self, dice: random.Random, swarm: Swarm, gradients: bool) -> None:
        self.dice = dice
        self.gradients = gradients
        self.writer = Writer(dice, swarm)
        self.lines: list[Line] = []
        self.space = _space("cpu", lambda: None, [])
        self.depths: dict[int, int] = {}
        self.storages: list[Any] = []  # held, so that none takes the place of another
        self.made = 0

    @property
    def known(self) -> list[Known]:
        return self.writer.known

    def consider(self, call: Call) -> None:
        """Adds the line of a call if it is a good one."""
        depth = max((k.depth for k in call.operands), default=0)
        if (call.picky and depth) or (call.template.rounds and depth >= DEEPEST):
            return
        kind = call.template.family
        if kind == "fresh" and self.gradients and self.dice.random() < 0.6 and _may_have_gradient(call.source):
            call = Call(f"{call.source}.requires_grad_()", call.template)
        if self.writer.is_too_new(call):
            return
        if "out=" in call.source and call.template.family == "write" and not self._may_write(call):
            return
        makes = not call.target and kind != "other"
        line = Line(call.source, f"t{self.made}" if makes else "")
        target = self.space.get(call.target)
        before = [(k, *settled.geometry_key(k.tensor), k.tensor._version) for k in self.known]
        geometry = settled.geometry_key(target) if isinstance(target, Tensor) else ()
        bytes_before = target.untyped_storage().nbytes() if isinstance(target, Tensor) else 0
        error = self._execute(line)
        if error is not None:
            if before != [(k, *settled.geometry_key(k.tensor), k.tensor._version) for k in self.known]:
                self._again()
            elif settled.is_a_mistake(error) and self.dice.random() < SHARE_OF_MISTAKES:
                # An `out=` and another argument may both be wrong, and then either error is correct.
                self.lines.append(Line(call.source, "", "Exception" if "out=" in call.source else type(error).__name__))
                self.writer.take(call)
            return
        if kind == "other":
            self.lines.append(line)
            self.writer.take(call)
            self.writer.known = [k for k in self.known if k.name in self.space]
            return
        made = self.space[line.name or call.target]
        if not self._accept(call, made, geometry, bytes_before):
            if makes:
                del self.space[line.name]
            else:
                self._again()
            return
        self.lines.append(line)
        self.made += makes
        self.writer.take(call)
        self._note(call, made, depth)

    def _may_write(self, call: Call) -> bool:
        """Whether an `out=` is nothing that the call reads, or its operator goes element by element."""
        if any(name in call.source for name in ELEMENTWISE):
            return True
        target = self.space[call.target].untyped_storage()._cdata
        return all(_storage(k.tensor) != target for k in call.operands[1:])

    def _execute(self, line: Line) -> Exception | None:
        with warnings.catch_warnings(), torch.set_grad_enabled(self.gradients):
            warnings.simplefilter("ignore")
            try:
                exec(line.text, self.space)  # noqa: S102
            except Exception as error:
                return error
        return None

    def _again(self) -> None:
        """Runs all lines anew, after one that was not taken has left its traces."""
        self.space = _space("cpu", lambda: None, [])
        depths = {k.name: k.depth for k in self.known}
        for line in self.lines:
            self._execute(line)
        self.depths, self.storages = {}, []
        self.writer.known = [Known(name, self.space[name], depth) for name, depth in depths.items()]
        for known in self.known:
            storage = known.tensor.untyped_storage()
            self.storages.append(storage)
            self.depths[storage._cdata] = max(self.depths.get(storage._cdata, 0), known.depth)

    def _accept(self, call: Call, made: object, geometry: tuple[object, ...], bytes_before: int) -> bool:
        if not isinstance(made, Tensor) or made.device.type != "cpu" or not settled.is_tame(made):
            return False
        operands = [k.tensor for k in call.operands]
        if call.template.family not in ("view", "fresh") and any(map(settled.is_odd_nothing, operands)):
            return False
        if any(word in call.source for word in settled.NOT_OF_INFINITIES) and not all(map(settled.is_finite, operands)):
            return False
        if self.gradients and any(word in call.source for word in settled.CHOICES):
            return False
        chooses = call.template.picky and call.template.family in ("reduction", "moving", "binary")
        if call.template.writes:
            if "resize_" in call.source and made.untyped_storage().nbytes() > bytes_before:
                return False
            if settled.is_open(call.source, made, geometry, operands):
                return False
        if not chooses and settled.becomes_integer(operands, made):
            return False
        beside = [k.tensor for k in self.known if _storage(k.tensor) == _storage(made)]
        if call.template.writes and not all(map(settled.is_tame, beside)):
            return False
        if settled.puns([made, *beside]):
            if any(t.is_complex() for t in (made, *beside)):
                return False
            rounded = call.template.rounds or any(k.depth for k in call.operands)
            return not rounded and not any(bool(settled.plain(t).isnan().any()) for t in (made, *beside))
        return True

    def _note(self, call: Call, made: Tensor, depth: int) -> None:
        storage = made.untyped_storage()
        if call.template.rounds:
            depth += 1
        elif not settled.is_short(made):
            depth = max(depth, 1)
        self.storages.append(storage)
        self.depths[storage._cdata] = max(self.depths.get(storage._cdata, 0), depth)
        names = [k.name for k in self.known] + ([] if call.target else [f"t{self.made - 1}"])
        self.writer.known = [Known(n, self.space[n], self.depths[_storage(self.space[n])]) for n in names]

    def go_backward(self) -> None:
        """Add a backward pass from some tensors that depend on a leaf; it may be refused."""
        sources = [k for k in self.known if k.tensor.requires_grad and k.tensor.numel()]
        if not sources:
            return
        chosen = self.dice.sample(sources, min(len(sources), self.dice.randint(1, 3)))
        terms = [f"{k.name}.abs().sum()" if k.tensor.is_complex() else f"{k.name}.sum()" for k in chosen]
        line = Line(f"({' + '.join(terms)}).backward()")
        error = self._execute(line)
        if error is None or settled.is_a_mistake(error):
            self.lines.append(line if error is None else Line(line.source, "", type(error).__name__))


def _may_have_gradient(source: str) -> bool:
    return any(f"torch.{dtype}" in source for dtype in ("float", "bfloat16", "complex"))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
