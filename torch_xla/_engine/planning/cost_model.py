"""Work of a program (computed, moved, sent), from XLA's text of it."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..metrics.user_lines import Line
from .collective_axes import NamedMesh, axes_of
from .convolution_work import flops as convolution_flops
from .hlo_parser import HloComputation, Instruction, Module

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
_NO_TRAFFIC = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional"),
    *("after-all", "partition-id", "replica-id", "opt-barrier"),
}
_READS_A_PART = ("gather", "dynamic-slice", "slice")


@dataclass(slots=True)
class Collective:
    """The collectives of one kind that come from one line: how many, and the bytes that each device handles.

    `bytes` are those of the values: what each device has of the result of an all-gather, of the operand of any other.
    `sent` is what each device sends if they go around a ring of `devices`.
    """

    kind: str
    line: Line | None
    devices: int
    count: int = 0
    bytes: int = 0
    sent: int = 0
    largest: str = ""  # the shape of the largest value, of one device
    largest_bytes: int = 0
    opcodes: set[str] = field(default_factory=set)
    axes: str = ""  # of the user's mesh, joined by " × "


@dataclass(slots=True)
class Work:
    """Work of one run of a program on each device."""

    flops: dict[str, float] = field(default_factory=dict)  # of products and convolutions, by the dtype they are of
    bytes: int = 0  # read and written
    collectives: list[Collective] = field(default_factory=list)
    steps: list[tuple[float, str, int]] = field(default_factory=list)  # FLOPs, dtype and bytes of each instruction

    @property
    def all_flops(self) -> float:
        """Of all dtypes."""
        return sum(self.flops.values())


def work_of(modules: list[Module], axes: tuple[NamedMesh | None, Sequence[int]] = (None, ())) -> Work:
    """Return the work of one run of a program; `axes` has the user's mesh and the slice of each device."""
    work = Work(collectives=collectives_of(modules, axes))
    for module in modules:
        for computation, times in module.executed():
            for instruction in computation.instructions:
                opcode = instruction.opcode
                if opcode in _NO_TRAFFIC or opcode.endswith("-done") or kind_of(instruction) is not None:
                    continue
                flops, dtype = _flops(instruction, computation, module)
                moved = _moved(instruction, computation, module)
                work.steps += [(flops, dtype, moved)] * times
                work.bytes += moved * times
                if flops:
                    work.flops[dtype] = work.flops.get(dtype, 0) + flops * times
    return work


def collectives_of(
    modules: list[Module], axes: tuple[NamedMesh | None, Sequence[int]] = (None, ())
) -> list[Collective]:
    """Return what one run of a program sends, the most bytes first."""
    found: dict[tuple[str, Line | None, int, str], Collective] = {}
    for module in modules:
        for computation, times in module.executed():
            for instruction in computation.instructions:
                kind = kind_of(instruction)
                if kind is not None:
                    along = axes_of(instruction, *axes)
                    _note_collective(found, (kind, instruction.line, along), instruction, computation, module, times)
    return sorted(found.values(), key=lambda each: -each.bytes)


def kind_of(instruction: Instruction) -> str | None:
    """Return which collective it is, or begins; `None`: no collective."""
    opcode = instruction.opcode.removesuffix("-start")
    return opcode if opcode in KINDS else None


def _note_collective(
    found: dict[tuple[str, Line | None, int, str], Collective],
    key: tuple[str, Line | None, str],
    instruction: Instruction,
    computation: HloComputation,
    module: Module,
    times: int,
) -> None:
    kind, line, along = key
    devices = group_size(instruction, module.partitions)
    if devices < 2 and kind != "collective-permute":
        return
    given = sum(computation.by_name[name].bytes for name in instruction.operands)
    size = given * devices if kind == "all-gather" else given
    each = found.setdefault((kind, line, devices, along), Collective(kind, line, devices, axes=along))
    each.count += times
    each.bytes += size * times
    each.sent += int(_sent(kind, size, devices) * times)
    each.opcodes.add(instruction.opcode)
    if size > each.largest_bytes:
        each.largest_bytes = size
        leaves = instruction.leaves if instruction.opcode == kind else instruction.leaves[-1:]
        each.largest = str(max(leaves, key=lambda leaf: leaf.bytes))


def _sent(kind: str, size: int, devices: int) -> float:
    around = (devices - 1) / devices
    return {"all-reduce": 2 * size * around, "collective-permute": size}.get(kind, size * around)


def group_size(instruction: Instruction, partitions: int) -> int:
    """Return how many devices take part together: of groups of several sizes, in the largest."""
    text = instruction.attributes
    named = re.search(r"replica_groups=mesh\[([^\]]*)\](?:<=[^{ ]*)?\s*\{([^}]*)\}", text)
    if named:
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", named[1])}
        parts = re.findall(r"'([^']*)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part) if part else sizes.get(name, 1) for name, part in parts)
    counted = re.search(r"replica_groups=\[([\d,]+)\]<=", text)
    if counted:
        return int(counted[1].split(",")[-1])
    listed = re.search(r"replica_groups=\{(\{[\d,{}]*\})\}", text)
    listed_sizes = [len(group.split(",")) for group in re.findall(r"\{([\d,]+)\}", listed[1])] if listed else []
    return max(listed_sizes, default=partitions)


def _flops(instruction: Instruction, computation: HloComputation, module: Module) -> tuple[float, str]:
    """Return the FLOPs of the products and convolutions in an instruction, with the dtype of their operands."""
    opcode = instruction.opcode
    if opcode == "fusion":
        flops, dtype = 0.0, ""
        for _, name in instruction.called():
            inner = module.computations.get(name)
            for each in inner.instructions if inner else ():
                own, own_dtype = _flops(each, inner, module)  # type: ignore[arg-type]
                flops, dtype = flops + own, own_dtype or dtype
        return flops, dtype
    operands = [computation.by_name[name].leaves for name in instruction.operands if name in computation.by_name]
    if len(operands) < 2 or not operands[0] or not instruction.leaves:
        return 0.0, ""
    left, right, given = operands[0][0], operands[1][0] if operands[1] else operands[0][0], instruction.leaves[0]
    if opcode == "convolution":
        return convolution_flops(instruction.attributes, left, right, given), left.dtype
    contracted = re.search(
        r'lhs_contracting_dims=\{([\d,]*)\}|"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes
    )
    if opcode in ("dot", "custom-call", "ragged-dot") and contracted:
        places = [int(each) for each in re.findall(r"\d+", contracted[1] or contracted[2] or "")]
        return 2.0 * given.numel * math.prod(left.dims[place] for place in places), left.dtype
    match = re.search(r'"cost_estimate":\{"flops":"?(\d+)', instruction.attributes)
    return (float(match[1]), left.dtype) if match else (0.0, "")


def _moved(instruction: Instruction, computation: HloComputation, module: Module) -> int:
    """Return the bytes it reads and writes. A slice reads only its part."""
    given = instruction.stored_bytes
    if instruction.opcode in _READS_A_PART:
        return 2 * given
    operands = [computation.by_name[name] for name in instruction.operands if name in computation.by_name]
    if instruction.opcode == "dynamic-update-slice":
        return 2 * operands[1].stored_bytes
    read = [each.stored_bytes for each in operands]
    if instruction.opcode == "fusion":
        for _, name in instruction.called():
            inner = module.computations.get(name)
            if inner is not None:
                given, read = _moved_by_fusion(inner, given, read)
    return given + sum(read)


def _moved_by_fusion(inner: HloComputation, given: int, read: list[int]) -> tuple[int, list[int]]:
    users: dict[str, list[Instruction]] = {}
    for each in inner.instructions:
        for name in each.operands:
            users.setdefault(name, []).append(each)
    for each in inner.instructions:
        own = users.get(each.name, [])
        if each.opcode != "parameter" or not own or int(each.argument) >= len(read):
            continue
        place = int(each.argument)
        if not all(user.operands[0] == each.name for user in own):
            continue
        opcodes = {user.opcode for user in own}
        if opcodes <= set(_READS_A_PART):
            read[place] = min(read[place], sum(user.stored_bytes for user in own))
        elif opcodes == {"dynamic-update-slice"}:
            written = sum(inner.by_name[user.operands[1]].stored_bytes for user in own)
            read[place] = min(read[place], written)
            given = min(given, written) if inner.root in own else given
    return given, read
