"""Parse XLA's text of a compiled program: computations, instructions, shapes, and the user's lines."""

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..metrics.user_lines import Line
from .tiled_layouts import padded as padded_size

_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "token": 0, "opaque": 0}
_LEAF = re.compile(r"([a-z][a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*-> .*\{$")
_NAME = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = ")
_OPERAND = re.compile(r"%([^\s,()]+)")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_TABLE = re.compile(r"^(\d+) (.*)$")
_FIELD = re.compile(r"(\w+)=(\d+)")
# The attributes that name the computations of an instruction. A conditional by a boolean has two of them.
_CALLING = (
    "calls", "to_apply", "body", "condition", "branch_computations", "true_computation", "false_computation",
)  # fmt: skip
_PARENTHESIS = re.compile(r"[()]")


@dataclass(frozen=True, slots=True)
class Leaf:
    """An array: the name of its dtype as XLA has it, such as "f32", and its dimensions."""

    dtype: str
    dims: tuple[int, ...]
    layout: str = field(default="", compare=False)  # order of dimensions, tiles and memory space, as XLA prints them

    @property
    def is_on_chip(self) -> bool:
        """Return whether it is in memory of the chip itself, or of the host, and takes none of the device's."""
        return re.search(r"S\([1-9]", self.layout) is not None

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return math.ceil(self.numel * bytes_of(self.dtype))

    @property
    def stored_bytes(self) -> int:
        """The bytes that it takes: a TPU's layouts consist of tiles, which have padding."""
        count = padded_size(self.dims, self.layout) if ":T(" in self.layout else self.numel
        return math.ceil(count * bytes_of(self.dtype))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def bytes_of(dtype: str) -> float:
    """Return the bytes of one element."""
    known = _BYTES.get(dtype)
    if known is None:
        bits = re.search(r"\d+", dtype)
        known = (int(bits[0]) if bits else 8) / 8
    return known


@dataclass(slots=True)
class Instruction:
    """One instruction of a computation."""

    name: str
    leaves: tuple[Leaf, ...]  # of its result: one, or those of a tuple
    is_tuple: bool
    opcode: str
    operands: tuple[str, ...]
    argument: str  # the text in its parentheses: the number of a parameter, or a constant
    attributes: str
    line: Line | None
    is_root: bool

    @property
    def bytes(self) -> int:
        """Bytes of its result."""
        return sum(leaf.bytes for leaf in self.leaves)

    @property
    def stored_bytes(self) -> int:
        """The bytes that its result takes, with padding."""
        return sum(leaf.stored_bytes for leaf in self.leaves)

    def attribute(self, name: str) -> str | None:
        """Return the word, or the text in braces, behind `name=`."""
        found = re.search(rf"(?:^|[ ,]){name}=(\{{[^}}]*\}}|[^\s,]+)", self.attributes)
        return found[1] if found else None

    def called(self) -> list[tuple[str, str]]:
        """Return the computations that it runs, each with the attribute that names it."""
        found = []
        for kind in _CALLING:
            text = self.attribute(kind)
            if text:
                found += [(kind, name.lstrip("%")) for name in text.strip("{}").replace(" ", "").split(",")]
        return found


@dataclass(slots=True)
class HloComputation:
    """Instructions in the order in which they run."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    by_name: dict[str, Instruction] = field(default_factory=dict)

    def add(self, instruction: Instruction) -> None:
        """Add the next instruction."""
        self.instructions.append(instruction)
        self.by_name[instruction.name] = instruction

    @property
    def root(self) -> Instruction:
        """The one whose result is the computation's."""
        return next((each for each in self.instructions if each.is_root), self.instructions[-1])


@dataclass(slots=True)
class Module:
    """XLA's compiled program, or a stage of one that runs `times` times."""

    times: int
    partitions: int
    computations: dict[str, HloComputation]
    entry: HloComputation
    stored: tuple[Leaf, ...] = ()  # its inputs and results, as they are in the device's memory

    def executed(self) -> Iterator[tuple[HloComputation, int]]:
        """Yield the computations whose instructions run one by one, and how often each does."""
        pending = [(self.entry, self.times)]
        while pending:
            computation, times = pending.pop()
            yield computation, times
            for instruction in computation.instructions:
                if instruction.opcode not in ("while", "conditional", "call", "async-start"):
                    continue
                inner = times * (trips(instruction) if instruction.opcode == "while" else 1)
                for kind, name in instruction.called():
                    if kind != "condition" and name in self.computations:
                        pending.append((self.computations[name], inner))


def trips(loop: Instruction) -> int:
    """Return how often the body of a loop runs, if XLA knows; else once."""
    found = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
    return int(found[1]) if found else 1


def module(text: str, times: int = 1) -> Module:
    """Return a module as XLA prints it, of an executable that runs `times` times."""
    lines = text.splitlines()
    places = _Places()
    computations: dict[str, HloComputation] = {}
    entry = current = None
    head = next(line for line in lines if line.startswith("HloModule"))
    partitions = re.search(r"num_partitions=(\d+)", head)
    stored = re.search(r"entry_computation_layout=\{(.*?)\}(?:, [a-z_]+=|$)", head)
    for line in lines:
        if current is None:
            header = _HEADER.match(line)
            if header is None:
                places.read(line)
                continue
            current = computations[header[2]] = HloComputation(header[2])
            entry = current if header[1] else entry
        elif line.startswith("}"):
            current = None
        else:
            instruction = _instruction(line, places)
            if instruction is not None:
                current.add(instruction)
    if entry is None:
        raise ValueError("a module without an entry")
    count = int(partitions[1]) if partitions else 1
    return Module(times, count, computations, entry, leaves_of(stored[1]) if stored else ())


class _Places:
    """The tables at the head of a module that say which line a frame is."""

    def __init__(self) -> None:
        self._table = ""
        self._files: dict[int, str] = {}
        self._functions: dict[int, str] = {}
        self._locations: dict[int, dict[str, int]] = {}
        self._frames: dict[int, int] = {}

    def read(self, line: str) -> None:
        """Read one line of the head."""
        row = _TABLE.match(line)
        if row is None:
            self._table = line.strip() or self._table
            return
        number, rest = int(row[1]), row[2]
        if self._table == "FileNames":
            self._files[number] = rest.strip('"')
        elif self._table == "FunctionNames":
            self._functions[number] = rest.strip('"')
        elif self._table == "FileLocations":
            self._locations[number] = {name: int(value) for name, value in _FIELD.findall(rest)}
        elif self._table == "StackFrames":
            self._frames[number] = dict(_FIELD.findall(rest)).get("file_location_id", 0)

    def line(self, attributes: str) -> Line | None:
        """Return the line in the metadata of an instruction."""
        frame = _FRAME.search(attributes)
        if frame is not None:
            place = self._locations.get(int(self._frames.get(int(frame[1]), 0)))
            if place is not None:
                file, function = place.get("file_name_id", 0), place.get("function_name_id", 0)
                return self._files.get(file, ""), place.get("line", 0), self._functions.get(function, "")
        source = _SOURCE.search(attributes)
        return (source[1], int(source[2]), "") if source else None


def _instruction(text: str, places: _Places) -> Instruction | None:
    start = _NAME.match(text)
    if start is None:
        return None
    at = start.end()
    is_tuple = text[at] == "("
    end = _closing(text, at) + 1 if is_tuple else text.index(" ", at)
    shape = text[at:end]
    opening = text.index("(", end)
    closing = _closing(text, opening)
    attributes = text[closing + 1 :]
    return Instruction(
        start[2],
        leaves_of(shape),
        is_tuple,
        text[end:opening].strip(),
        tuple(_OPERAND.findall(text, opening, closing)),
        text[opening + 1 : min(closing, opening + 100)],
        attributes,
        places.line(attributes),
        bool(start[1]),
    )


def leaves_of(shape: str) -> tuple[Leaf, ...]:
    """Return the arrays in a shape as XLA prints it: one, or those of a tuple."""
    return tuple(_leaf(*found) for found in _LEAF.findall(shape))


@functools.lru_cache(4096)
def _leaf(dtype: str, dims: str, layout: str) -> Leaf:
    return Leaf(dtype, tuple(int(each.lstrip("<=")) for each in dims.split(",") if each), layout)


def _closing(text: str, opening: int) -> int:
    """Return where the parenthesis at `opening` ends."""
    depth = 0
    for match in _PARENTHESIS.finditer(text, opening):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.start()
    return len(text) - 1
