"""Report what programs of several devices send, and warn of large copies without a mark, when they are compiled.

A layout that does not fit the computation shows only in memory and time: XLA gathers what it needs. So a large value
that is gathered on every device, or that a program leaves whole on each, is reported with its line.
"""

import logging
import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from ... import dtypes
from ...atomic import uncollected
from ...compile.program import Program
from ...ir.input_output_alias import successors
from ...lowering.machinery.jax_sharding import CONSTRAINT
from ...metrics import events
from ...metrics.events import Compilation
from ...metrics.human_units import size
from ...metrics.user_lines import Line, text
from ...planning import cost_model, hlo_parser
from ...planning.cost_model import Collective
from ...planning.hlo_parser import HloComputation, Instruction

logger = logging.getLogger("torch_xla.sharding")

_MOST_PROGRAMS = 128
# Smaller values are gathered without a warning.
_LARGE = 16 << 20
# Instructions through which an operand is traced to a parameter.
_SAME_ELEMENTS = {"bitcast", "copy", "convert", "transpose", "reshape", "optimization-barrier", "opt-barrier"}


@dataclass(frozen=True, slots=True)
class Copied:
    """A large value that is whole on each device without a mark that asks for it."""

    shape: str
    bytes: int
    line: Line | None
    is_result: bool  # it stays when the program ends, as the state of an optimizer does

    def __str__(self) -> str:
        where = f" at {text(self.line)}" if self.line is not None else ""
        if self.is_result:
            return (
                f"{self.shape} ({size(self.bytes)}){where} is whole on each device when the program ends, though a "
                "value like it is divided: xs.mark_sharding() it like that one."
            )
        return (
            f"{self.shape} ({size(self.bytes)}){where} comes together on each device: mark it, or what it is computed "
            "from, so that the operation finds its operands divided alike (xs.mark_sharding)."
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of one run of a program."""

    operations: int
    devices: int
    line: Line | None
    collectives: tuple[Collective, ...]
    copied: tuple[Copied, ...]


_found: "deque[Traffic]" = deque(maxlen=_MOST_PROGRAMS)


def keep(yes: bool) -> None:
    """Turn on or off the analysis of programs of several devices."""
    events.unlisten(_listen)
    if yes:
        events.listen(_listen, closely=False, kinds=(Compilation,))


def found() -> list[Traffic]:
    """Return the traffic of the last programs, oldest first."""
    return list(_found)


def clear() -> None:
    """Forget the traffic."""
    _found.clear()


def _listen(event: Any) -> None:
    if len(event.program.target.devices) > 1:
        traffic = _of_program(event)
        _found.append(traffic)
        for copied in traffic.copied:
            logger.warning("%s", copied)


@uncollected  # to look for garbage takes longer than all of this
def _of_program(event: Compilation) -> Traffic:
    program: Program = event.program
    parts = program.parts(event.numbers)
    modules = [hlo_parser.module(executable.as_text(), times) for executable, times in parts]
    line = next((line for line in reversed(event.lines) if line is not None), None)
    copied = []
    if program.target.is_spread:  # collectives between processes are the user's
        copied = [each for module in modules for each in _gathered(module)]
        copied += _left_whole(program, program.placed(event.numbers), event.lines)
    collectives = tuple(cost_model.collectives_of(modules))
    count = len(program.graph.operations)
    return Traffic(count, len(program.target.devices), line, collectives, tuple(copied))


def _gathered(module: hlo_parser.Module) -> list[Copied]:
    """Return the large intermediate values that all-gathers bring together. Weights are gathered where they are
    divided.
    """
    copied: dict[Any, Copied] = {}
    for computation, _ in module.executed():
        for each in computation.instructions:
            if cost_model.kind_of(each) != "all-gather" or "sharding_constraint" in each.attributes:
                continue
            leaf = max(each.leaves, key=lambda leaf: leaf.bytes)
            if leaf.bytes >= _LARGE and not _is_parameter(each, computation):
                copied.setdefault((str(leaf), each.line), Copied(str(leaf), leaf.bytes, each.line, False))
    return list(copied.values())


def _is_parameter(gather: Instruction, computation: HloComputation) -> bool:
    """Return whether what is gathered is what the program was given, at most in another order or dtype."""
    instruction = gather
    while instruction.operands:
        nearest = computation.by_name.get(instruction.operands[0])
        if nearest is None:
            return False
        if nearest.opcode == "parameter":
            return True
        is_plain_fusion = nearest.opcode == "fusion" and len(nearest.operands) == 1
        if nearest.opcode not in _SAME_ELEMENTS and not is_plain_fusion:
            return False
        instruction = nearest
    return False


def _left_whole(program: Program, placed: list[Any], lines: Any) -> list[Copied]:
    """Return the large results that are whole on each device, where an input like them is divided and none is whole."""
    graph = program.graph
    divided = {(spec.size, spec.dtype) for spec in graph.inputs if spec.sharding is not None}
    whole = {(spec.size, spec.dtype) for spec in graph.inputs if spec.sharding is None}
    replacing = {output for index, output in successors(graph).items() if index in program.donated}
    made_by = {
        operation.first_output + nth: index
        for index, operation in enumerate(graph.operations)
        for nth in range(len(operation.plan.outputs))
    }
    copied: dict[Any, Copied] = {}
    for output, (slot, sharding) in enumerate(zip(graph.outputs, placed, strict=True)):
        spec = graph.specs[slot]
        like = spec.size, spec.dtype
        taken = math.prod(spec.size) * int(dtypes.to_jax(dtypes.on_device(spec.dtype)).itemsize)
        if taken < _LARGE or not sharding.is_fully_replicated or output in replacing or slot not in made_by:
            continue
        index = made_by[slot]
        if like in whole or like not in divided or graph.operations[index].plan.op == CONSTRAINT:
            continue
        line = lines[index] if index < len(lines) else None
        shape = f"{str(spec.dtype).removeprefix('torch.')}{list(spec.size)}"
        copied.setdefault((shape, line), Copied(shape, taken, line, True))
    return list(copied.values())


def report() -> str:
    """Return all of it as a table."""
    rows = []
    for number, traffic in enumerate(_found, 1):
        ends = f", ends at {text(traffic.line)}" if traffic.line is not None else ""
        sent = size(sum(each.bytes for each in traffic.collectives))
        rows.append(f"program {number} on {traffic.devices} devices: {traffic.operations} operations, {sent}{ends}")
        for each in traffic.collectives:
            where = f"  {text(each.line)}" if each.line is not None else ""
            what = f"{each.count:>4} × {each.kind} among {each.devices}, up to {each.largest}"
            rows.append(f"  {size(each.bytes):>9}  {what}{where}")
        rows += [f"  ! {copied}" for copied in traffic.copied]
    return "\n".join(rows) or "no program of several devices was compiled"
