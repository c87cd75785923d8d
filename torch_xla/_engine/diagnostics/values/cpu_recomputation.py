"""Recompute a captured step with PyTorch on the CPU, and compare the results.

Each operator reads what the device's operator read, so a difference is its own and not one that came down to it. Beside
that the whole program is computed by PyTorch from its inputs on, and its outputs are compared with those of the device.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...ir.graph import Operation
from ...ir.graph_text import name_of, shape
from ...metrics.user_lines import Line, text
from . import capture, cpu_reference
from .capture import CapturedProgram
from .graph_json import Opaque

# How far a result may be off, as a part of its largest element. Sums of thousands of terms lose some digits to the
# order in which they are added, so these are a few times PyTorch's own for single elements.
TOLERANCES = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
_COARSE = 0.13  # for dtypes of eight bits: one step of their coarsest
_ALONG_A_STEP = 10.0  # factor for the results of a step, in which rounding adds up
# Where terms cancel, the error is that of the terms: a result counts as large as this part of its operator's largest
# operand, unless that is so much larger than the result that it can only be the value of a mask.
_OF_OPERANDS, _OF_MASKS = 0.1, 1e4
# The same for results of a step, whose terms may have cancelled anywhere on the way: some gradients are all rounding.
_OF_A_STEP = 1e-2


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A result that is not the same on the device and on the CPU."""

    operator: str
    line: Line | None
    shape: str
    relative: float  # the largest difference, as a part of the largest element; inf where one is NaN or inf alone
    tolerance: float
    place: tuple[int, ...]
    device: float | complex
    cpu: float | complex

    def __str__(self) -> str:
        where = f" at {text(self.line)}" if self.line else ""
        return (
            f"{self.operator}{where}: {self.shape} differs by {self.relative:.3g} of its largest element "
            f"(allowed: {self.tolerance:.3g}), most at {list(self.place)}: device {self.device:.6g}, CPU {self.cpu:.6g}"
        )


@dataclass(slots=True)
class StepComparison:
    """Result of a replay."""

    path: str
    made_with: dict[str, str]
    programs: int = 0
    operators: int = 0
    compared: int = 0  # operators
    without_results: bool = False  # those of single operators are not in the file
    skipped: dict[str, str] = field(default_factory=dict)  # operators that were not compared, and why
    differences: list[Mismatch] = field(default_factory=list)  # of operators, in the order of the program
    outputs: int = 0
    output_differences: list[Mismatch] = field(default_factory=list)

    @property
    def first(self) -> Mismatch | None:
        """The first operator that differs."""
        return self.differences[0] if self.differences else None

    @property
    def agrees(self) -> bool:
        """Return whether nothing differs."""
        return not self.differences and not self.output_differences

    def __str__(self) -> str:
        made = self.made_with
        size = f"{_count(self.operators, 'operator')} in {_count(self.programs, 'program')}"
        where = f"captured on {made['device']} with torch {made['torch']}, jax {made['jax']}"
        rows = [f"{self.path}: {size}, {where}"]
        rows += self._of_operators() + self._of_outputs()
        rows += [f"Not compared: {name} ({reason})" for name, reason in self.skipped.items()]
        return "\n".join(rows)

    def _of_operators(self) -> list[str]:
        if not self.compared:
            alone = "No operator was compared by itself"
            return [f"{alone}: their results are not in this file." if self.without_results else f"{alone}."]
        if self.first is None:
            return [
                f"Each of the {self.compared} operators compared gives on the device what PyTorch gives on the CPU."
            ]
        count = f"{len(self.differences)} of {_count(self.compared, 'operator')}"
        rows = [f"{count} compared differ from PyTorch on the CPU, the first is", f"  {self.first}"]
        worst = max(self.differences, key=lambda each: each.relative / each.tolerance)
        return rows if worst is self.first else [*rows, "and the one that differs most", f"  {worst}"]

    def _of_outputs(self) -> list[str]:
        found = self.output_differences
        if not self.outputs:
            return ["No result of the step was compared."]
        if not found:
            return [f"The results of the step ({self.outputs}) are those of PyTorch."]
        worst = max(found, key=lambda each: each.relative / each.tolerance)
        rows = [f"{len(found)} of {_count(self.outputs, 'result')} of the step differ, most that of", f"  {worst}"]
        if self.compared and not self.differences:
            rows.append(
                "No operator differs by itself: the difference builds up along the step, or comes from how XLA "
                "compiles the operators together."
            )
        return rows


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def replay(path: str | os.PathLike[str], tolerance: float | None) -> StepComparison:
    """Compute the step in `path` on the CPU; `tolerance` replaces those for each dtype."""
    step = capture.load(path)
    found = StepComparison(os.fspath(path), step.made_with)
    with torch.no_grad():
        for program in step.programs:
            _replay(program, tolerance, found)
    return found


def _replay(program: CapturedProgram, tolerance: float | None, found: StepComparison) -> None:
    graph = program.graph
    found.programs += 1
    found.operators += len(graph.operations)
    specs = graph.specs
    # By slot: what PyTorch computes from the inputs on (`None`: it cannot), and what the device computed, where known.
    ours: list[Tensor | None] = [t.to(spec.dtype) for t, spec in zip(program.inputs, graph.inputs, strict=True)]
    theirs: list[Tensor | None] = [*ours, *(program.results.get(slot) for slot in range(len(ours), len(specs)))]
    made_by: list[tuple[str, Line | None]] = [("an input", None)] * len(ours)
    read = [0.0] * len(ours)  # for each slot, the largest number that its operator read
    given: set[int] = set()  # the slots that are the device's own among `ours`
    found.without_results |= not program.results
    for operation, line in zip(graph.operations, program.lines, strict=True):
        name = name_of(operation)
        slots = range(operation.first_output, operation.first_output + len(operation.plan.outputs))
        made_by += [(name, line)] * len(slots)
        read += [_largest([ours[slot] for slot in operation.operands])] * len(slots)
        alone = _run(program, operation, theirs)
        whole = _run(program, operation, ours)
        if isinstance(whole, str):
            # Take from the device what PyTorch cannot compute, so that the rest can still be compared.
            found.skipped.setdefault(name, whole)
            given.update(slots)
            ours.extend(theirs[slot] for slot in slots)
        else:
            parts = whole or [None] * len(slots)
            given.update(slot for slot, part in zip(slots, parts, strict=True) if part is None)
            ours.extend(
                theirs[slot] if part is None and whole else part for slot, part in zip(slots, parts, strict=True)
            )
        if isinstance(alone, list) and all(theirs[slot] is not None for slot in slots):
            found.compared += 1
            pairs = [(slot, cpu) for slot, cpu in zip(slots, alone, strict=True) if cpu is not None]
            largest = _largest([theirs[slot] for slot in operation.operands])
            each = [
                _compare(theirs[slot], cpu, tolerance, made_by[slot], shape(specs[slot]), largest)
                for slot, cpu in pairs
            ]
            found.differences += [difference for difference in each if difference is not None][:1]
    for slot, device in zip(graph.outputs, program.outputs, strict=True):
        if ours[slot] is not None and slot not in given:
            found.outputs += 1
            difference = _compare(
                device,
                ours[slot],
                tolerance,
                made_by[slot],
                shape(specs[slot]),
                max(read[slot], _OF_A_STEP),
                _ALONG_A_STEP,
            )
            found.output_differences += [difference] if difference is not None else []


def _run(
    program: CapturedProgram, operation: Operation, values: list[Tensor | None]
) -> list[Tensor | None] | str | None:
    """Return the results of an operator, `None` if what it reads is not known, or why PyTorch cannot run it."""
    plan = operation.plan
    if isinstance(plan.op, Opaque):
        return "it is not in the file"
    operands: list[Tensor] = []
    for slot, spec in zip(operation.operands, plan.operands, strict=True):
        value = values[slot]
        if value is None:
            return None
        operands.append(cpu_reference.in_its_order(value, spec.size, spec.stride))
    first = operation.first_number
    try:
        return cpu_reference.run(plan, operands, program.numbers[first : first + len(plan.numbers)])
    except cpu_reference.NotRunnable as error:
        return str(error)


def _compare(
    device: Tensor | None,
    cpu: Tensor | None,
    tolerance: float | None,
    made_by: tuple[str, Line | None],
    size: str,
    read: float,
    slack: float = 1.0,
) -> Mismatch | None:
    assert device is not None and cpu is not None
    if not cpu.numel():
        return None
    allowed = slack * (tolerance if tolerance is not None else _tolerance(device.dtype, cpu.dtype))
    wide = torch.complex128 if cpu.is_complex() else torch.float64
    d, c = device.to(wide).reshape(-1), cpu.to(wide).reshape(-1)
    gap = (d - c).abs()
    gap[gap.isnan()] = torch.inf  # NaN or inf on one side
    is_same = (d == c) | (d.isnan() & c.isnan())
    if not (cpu.is_floating_point() or cpu.is_complex()):  # large integers differ by less than float64 can represent
        is_same = (device == cpu).reshape(-1)
        gap.clamp_(min=1)
    gap[is_same] = 0
    largest = _largest([cpu])
    if read < _OF_MASKS * (1 + largest):
        largest = max(largest, _OF_OPERANDS * read)
    off = float(gap.max())
    relative = off / largest if largest else torch.inf
    if not off or relative <= allowed:
        return None
    at = int(gap.argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), cpu.shape))
    return Mismatch(*made_by, size, relative, allowed, place, d[at].item(), c[at].item())


def _largest(tensors: Sequence[Tensor | None]) -> float:
    """Return the largest finite absolute value of floating-point or complex elements."""
    largest = 0.0
    for tensor in tensors:
        if tensor is not None and tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
            size = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).abs()
            finite = size[size.isfinite() & (size < 1e30)]
            largest = max(largest, float(finite.max()) if finite.numel() else 0.0)
    return largest


def _tolerance(*kinds: torch.dtype) -> float:
    """Return the tolerance of the coarser dtype: under XLA_USE_BF16 the device has another one than PyTorch."""
    return max(_tolerance_of(kind) for kind in kinds)


def _tolerance_of(kind: torch.dtype) -> float:
    if not (kind.is_floating_point or kind.is_complex):
        return 0.0
    return TOLERANCES.get(kind, _COARSE)
