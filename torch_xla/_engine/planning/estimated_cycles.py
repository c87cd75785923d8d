"""Read the time that the TPU's compiler expects a program to take: it writes cycles beside its instructions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..metrics.user_lines import Line
from .hlo_parser import Instruction, Module

_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
# Parts of a name that JAX adds: functions it traced, such as "jit(relu)".
_OF_JAX = re.compile(r"^\w+\(.*\)$")


@dataclass(slots=True)
class Cycles:
    """Cycles of one run of a program on each device: all, by the user's line, and by module."""

    all: int = 0
    by_line: dict[Line | None, int] = field(default_factory=dict)
    by_module: dict[str, int] = field(default_factory=dict)

    def add(self, count: int, line: Line | None, module: str) -> None:
        """Add the cycles of an instruction."""
        self.all += count
        self.by_line[line] = self.by_line.get(line, 0) + count
        self.by_module[module] = self.by_module.get(module, 0) + count


def cycles_of(modules: Sequence[Module]) -> Cycles:
    """Return the cycles of one run; none where the compiler does not estimate them."""
    found = Cycles()
    for module in modules:
        for computation, times in module.executed():
            for each in computation.instructions:
                estimate = _CYCLES.search(each.attributes)
                if estimate:
                    found.add(int(estimate[1]) * times, each.line, module_of(each))
    for name in ("by_line", "by_module"):
        setattr(found, name, dict(sorted(getattr(found, name).items(), key=lambda each: -each[1])))
    return found


def module_of(instruction: Instruction) -> str:
    """Return the module or scope in which an operation was recorded: "jit(program)/layers.0/aten::mm" → "layers.0"."""
    found = _OP_NAME.search(instruction.attributes)
    parts = found[1].split("/") if found else []
    named = next((place for place, part in enumerate(parts) if "::" in part), 0)
    return "/".join(part for part in parts[:named] if not _OF_JAX.match(part))
