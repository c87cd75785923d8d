"""Find the intermediate values that are alive when a program takes most memory.

XLA reports the size of the memory that it sets aside for them, and which values use it. Their lifetimes follow from the
order of the instructions: a value lives from the instruction that makes it to the last that reads it.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass

from .hlo_parser import HloComputation, Instruction, Leaf, Module
from .protobuf_reader import number_of, parsed, text_of

# Instructions that return their operand.
_FORWARD = {"bitcast", "tuple", "get-tuple-element", "opt-barrier", "while", "call", "after-all", "copy-done"}
# Instructions that write into the memory of an operand without later readers.
_IN_PLACE = {"fusion", "dynamic-update-slice", "scatter", "add", "multiply", "subtract", "convert", "select", "call"}
_NO_MEMORY = {"parameter", "constant", "partition-id", "replica-id", "iota"}


@dataclass(frozen=True, slots=True)
class Alive:
    """A value that is alive at the peak."""

    leaf: Leaf
    maker: Instruction


Buffers = frozenset[int]


class _Lives:
    """The buffers of one computation: who makes them and who reads them last."""

    def __init__(self, computation: HloComputation, set_aside: Container[str] | None) -> None:
        self._by_name = computation.by_name
        self.made: list[tuple[Instruction, Leaf]] = []
        self.makes: dict[str, list[int]] = {}
        self.last: dict[int, int] = {}
        self._shown: dict[str, list[Buffers]] = {}
        self.kept: set[int] = set()
        for position, instruction in enumerate(computation.instructions):
            for name in instruction.operands:
                for buffer in _all(self._shown.get(name, ())):
                    self.last[buffer] = position
            self._shown[instruction.name] = self._shows(instruction)
        # The caller of a computation owns the memory of its result.
        self.kept.update(_all(self._shown[computation.root.name]))
        if set_aside is not None:
            self.kept.update(buffer for name, own in self.makes.items() if name not in set_aside for buffer in own)

    def _shows(self, instruction: Instruction) -> list[Buffers]:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode in _NO_MEMORY:
            return [frozenset()]
        if opcode == "tuple":
            return [frozenset(_all(self._shown.get(name, ()))) for name in operands]
        if opcode == "get-tuple-element":
            parts = self._shown.get(operands[0], [])
            index = int(instruction.attribute("index") or 0)
            return [parts[index]] if index < len(parts) else [frozenset(_all(parts))]
        if opcode.endswith("-done") or (opcode in _FORWARD and opcode != "call"):
            return self._shown.get(operands[0], []) if operands else [frozenset()]
        own: list[int] = []
        shown: list[Buffers] = []
        passed = self._passed_on(instruction)
        for leaf in instruction.leaves:
            if leaf.is_on_chip or (str(leaf), leaf.layout) in passed:
                shown.append(frozenset())
                continue
            shown.append(frozenset((len(self.made),)))
            own.append(len(self.made))
            self.made.append((instruction, leaf))
        self.makes[instruction.name] = own
        for buffer in own:
            self.last.setdefault(buffer, -1)
        return shown

    def _passed_on(self, instruction: Instruction) -> set[tuple[str, str]]:
        """Return the operands that are part of the result of a copy that has started."""
        if instruction.opcode not in ("copy-start", "slice-start"):
            return set()
        makers = [self._by_name[name] for name in instruction.operands if name in self._by_name]
        return {(str(leaf), leaf.layout) for maker in makers for leaf in maker.leaves}


def _all(parts: Iterable[Buffers]) -> list[int]:
    return [buffer for part in parts for buffer in part]


def at_peak(module: Module, set_aside: Container[str] | None = None) -> list[Alive]:
    """Return the intermediate values alive when they take most memory, those of loops included.

    `set_aside` has the names of values in the program's own memory; `None` if XLA has not reported them.
    """
    return _at_peak(module, module.entry, set_aside)[1]


def set_aside(assignment: bytes, module: bytes) -> frozenset[str] | None:
    """Return the names of the instructions whose results XLA has put in memory of the program's own.

    From its `BufferAssignmentProto` and `HloModuleProto`; `None` where they contain nothing.
    """
    assigned = parsed(assignment)
    names = {
        number_of(instruction, 35): text_of(instruction, 1)
        for computation in parsed(module).get(3, ())
        for instruction in map(parsed, parsed(computation).get(2, ()))
    }
    maker = {}
    for buffer in map(parsed, assigned.get(1, ())):
        maker[number_of(buffer, 1)] = names.get(number_of(parsed(buffer[3][0]), 4), "")
    found: set[str] = set()
    for allocation in map(parsed, assigned.get(3, ())):
        # Of threads, of the entry's parameters, of results, of constants.
        if not any(number_of(allocation, field) for field in (3, 5, 7, 12)):
            found.update(maker.get(number_of(parsed(each), 1), "") for each in allocation.get(9, ()))
    return frozenset(found) if maker else None


def _at_peak(module: Module, computation: HloComputation, set_aside: Container[str] | None) -> tuple[int, list[Alive]]:
    lives = _Lives(computation, set_aside)
    alive: dict[int, int] = {}
    ends: dict[int, list[int]] = {}
    for buffer, last in lives.last.items():
        ends.setdefault(last, []).append(buffer)
    now = most = 0
    found: list[Alive] = []
    for position, instruction in enumerate(computation.instructions):
        own = [buffer for buffer in lives.makes.get(instruction.name, ()) if buffer not in lives.kept]
        dying = [buffer for buffer in ends.get(position, ()) if buffer in alive]
        if instruction.opcode in _IN_PLACE:
            now -= _taken_over(own, dying, alive, lives)
        for buffer in own:
            alive[buffer] = lives.made[buffer][1].stored_bytes
            now += alive[buffer]
        inner: tuple[int, list[Alive]] = (0, [])
        if instruction.opcode in ("while", "call", "conditional"):
            bodies = [name for kind, name in instruction.called() if kind != "condition"]
            inner = max(
                (_at_peak(module, module.computations[name], set_aside) for name in bodies), key=lambda each: each[0]
            )
        if now + inner[0] > most:
            most = now + inner[0]
            found = [Alive(lives.made[buffer][1], lives.made[buffer][0]) for buffer in alive] + inner[1]
        for buffer in [*dying, *(buffer for buffer in own if lives.last[buffer] < 0)]:
            now -= alive.pop(buffer, 0)
    return most, found


def _taken_over(own: list[int], dying: list[int], alive: dict[int, int], lives: _Lives) -> int:
    """Return the bytes of operands whose memory becomes that of results."""
    freed = 0
    for buffer in own:
        size = lives.made[buffer][1].stored_bytes
        match = next((each for each in dying if alive.get(each) == size), None)
        if match is not None:
            freed += alive.pop(match)
    return freed
