"""Follow a planned step: its programs as they are compiled, and what is held between them."""

import gc
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import torch

from .. import compiler_options, dtypes, imported_objects
from ..compile.program import Program
from ..errors import OutOfMemory
from ..ir.graph_text import name_of
from ..ir.tape import Value
from ..ir.value_spec import Spec
from ..lowering.machinery.jax_sharding import carried
from ..metrics.events import Sizes
from ..metrics.human_units import size
from ..metrics.user_lines import Line
from ..runtime import abstract_devices
from ..runtime.device_assignment import Target
from ..step.sync import sync_device
from ..tensor.device import existing_devices
from ..tensor.variable_names import name_buffers, value_of
from .collective_axes import Axes, no_axes
from .cost_model import Work, work_of
from .estimated_cycles import Cycles, cycles_of
from .hlo_parser import Module
from .hlo_parser import module as parse_module
from .module_scopes import modules_named
from .peak_memory import Alive, at_peak, set_aside
from .planned_step import planned_step
from .stored_sizes import StoredSizes

# A program that is compiled to be measured and not to run needs no good machine code.
FAST: Mapping[str, compiler_options.Option] = {"xla_backend_optimization_level": 0}


@dataclass(slots=True)
class Large:
    """Values of one shape that one line made, or that have one name: what they take on each device together."""

    what: str  # "held" by the user's program, or "intermediate"
    name: str  # of the first, as far as known
    shape: str  # of each, on one device
    line: Line | None
    count: int
    bytes: int
    is_whole: bool = False  # each of several devices has all of it


@dataclass(slots=True)
class Held:
    """Bytes of each device by what they hold."""

    parameters: int = 0
    state: int = 0
    gradients: int = 0
    others: int = 0

    def add(self, kind: str | None, size: int) -> None:
        """Add bytes of a kind, which is the name of a field; `None` means the others."""
        kind = kind or "others"
        setattr(self, kind, getattr(self, kind) + size)

    @property
    def all(self) -> int:
        """Of everything."""
        return self.parameters + self.state + self.gradients + self.others


@dataclass(slots=True)
class PlannedProgram:
    """One program of a planned step."""

    operations: int
    line: Line | None  # the last that it was recorded from
    sizes: Sizes
    work: Work
    compile_seconds: float
    runs: int = 0
    held: Held = field(default_factory=Held)  # when it ends
    passing: int = 0  # bytes of inputs without a holder, whose memory no result takes
    largest: list[Large] = field(default_factory=list)
    cycles: Cycles = field(default_factory=Cycles)  # as its compiler estimates them: a TPU's alone does
    text: str = ""  # the compiled program; of one in stages, that of each stage
    code: int = 0  # bytes of the program itself, on a device that keeps it in the same memory
    donated: int = 0  # inputs whose memory it may write results into

    @property
    def peak(self) -> int:
        """The most bytes that one device has while it runs."""
        return self.held.all + self.passing + self.sizes.intermediate + self.code


@dataclass(slots=True)
class _Compiled:
    program: PlannedProgram
    intermediates: list[Large]
    placed: list[Any]


@dataclass(slots=True)
class Planning:
    """The planner of a block: gathers programs in the order of their first run."""

    programs: list[PlannedProgram] = field(default_factory=list)
    target: Target | None = None
    sizes: StoredSizes = field(default_factory=StoredSizes)
    axes: Axes = no_axes
    _known: dict[Program, _Compiled] = field(default_factory=dict)

    def see(
        self,
        program: Program,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        numbers: Sequence[float | int],
        lines: Sequence[Line | None],
    ) -> Sequence[object]:
        """Compile a program instead of running it, and return how its results would be divided."""
        self.target = program.target
        compiled = self._known.get(program)
        if compiled is None:
            compiled = self._known[program] = _compiled(program, numbers, lines, self)
            self.programs.append(compiled.program)
        found = compiled.program
        found.runs += 1
        if found.runs == 1:
            self.sizes.ask([value.buffer for value in inputs], program.target)
            found.largest = _largest([*_taken(program, inputs, self.sizes), *compiled.intermediates])
        held, passing = _held(program, inputs, outputs, compiled.placed, self.sizes)
        passing = max(0, passing - found.sizes.aliased)
        if held.all + passing > found.held.all + found.passing:
            found.held, found.passing = held, passing
        return compiled.placed

    def step(self, call: Callable[[], object]) -> None:
        """Run one call, and the sync at its end."""
        result = call()
        gc.collect()  # memory that only garbage holds would not be donated
        for device in existing_devices():
            sync_device(device)
        del result


@contextmanager
def planning(
    devices: int | tuple[jax.Device, ...] | None, axes: Axes = no_axes, rank: int | None = None
) -> Iterator[Planning]:
    """Plan a block for that many virtual devices, for those of a topology, or for the devices of this process.

    With a `rank` each device of the topology is of one process, and the block is what the process of that rank does.
    """
    found = Planning(axes=axes)
    options = FAST if isinstance(devices, int) else {}
    undo = compiler_options.choose({**options, **compiler_options.chosen()})
    try:
        with planned_step(found.see, devices, rank), modules_named() if isinstance(devices, tuple) else nullcontext():
            yield found
    finally:
        undo()


def sizes_of(program: Program, numbers: Sequence[float | int]) -> Sizes:
    """Return the memory that a program needs, which is compiled if it was not."""
    sizes = program.sizes_for(numbers) if program.compiled_for(numbers) else program.compile_for(numbers)
    if sizes is None:
        raise NotImplementedError(f"plan(): {program.target.platform} does not report the memory that a program needs.")
    return sizes


def sizes_and_work(program: Program, numbers: Sequence[float | int]) -> tuple[Sizes, Work]:
    """Return a program's memory and work."""
    return sizes_of(program, numbers), work_of(_modules(program, numbers)[2])


def _compiled(
    program: Program, numbers: Sequence[float | int], lines: Sequence[Line | None], planning: Planning
) -> _Compiled:
    start = time.perf_counter()
    try:
        sizes = sizes_of(program, numbers)
    except jax.errors.JaxRuntimeError as error:
        raise _too_large(error, program) from error
    seconds = time.perf_counter() - start
    parts, texts, modules = _modules(program, numbers)
    placed = program.placed(numbers)
    line = next((line for line in reversed(lines) if line is not None), None)
    planning.sizes.learn(modules)
    work = work_of(modules, planning.axes())
    found = PlannedProgram(len(program.graph.operations), line, sizes, work, seconds)
    found.cycles = cycles_of(modules)
    found.donated = len(program.donated)
    found.code = sizes.code if program.target.platform == "tpu" else 0
    found.text = "\n".join(texts)
    return _Compiled(found, [*_waiting(program, numbers), *_intermediates(parts, modules)], placed)


def _too_large(error: Exception, program: Program) -> Exception:
    """Return the error for a value that alone is larger than the memory of a device; others as they are."""
    found = re.search(r"Allocation .size=(\d+). would exceed memory .size=(\d+).", str(error))
    if found is None:
        return error
    shape = re.search(r"shape: ([^,]*,?[^,]*\]),", str(error))
    return OutOfMemory(
        f"plan(): one value needs {size(int(found[1]))} and each device ({program.target.kind}) has "
        f"{size(int(found[2]))}{f': {shape[1]}' if shape else ''}. Its compiler plans no program with such a value. "
        "Divide it among several devices (torch_xla.distributed.spmd.mark_sharding, FSDP)."
    )


def _modules(program: Program, numbers: Sequence[float | int]) -> tuple[list[Any], list[str], list[Module]]:
    """Return the executables of a program, their texts, and what these say."""
    parts = program.parts(numbers)
    texts = [each.as_text() for each, _ in parts]  # of thousands of devices each takes long to write
    modules = [parse_module(text, times) for text, (_, times) in zip(texts, parts, strict=True)]
    return [executable for executable, _ in parts], texts, modules


def intermediates_of(program: Program, numbers: Sequence[float | int]) -> list[Large]:
    """Return the intermediate values of a compiled program at its peak, the largest first; equal ones together."""
    executables, _, modules = _modules(program, numbers)
    return _largest([*_waiting(program, numbers), *_intermediates(executables, modules)])


def _intermediates(executables: Sequence[object], modules: Sequence[Module]) -> list[Large]:
    """Return the intermediate values alive at the peak: of a program in stages, at that of the stage with the
    highest.
    """
    peaks = [at_peak(module, _set_aside(executable)) for executable, module in zip(executables, modules, strict=True)]
    found = max(peaks, key=lambda each: sum(value.leaf.stored_bytes for value in each), default=[])
    return [
        Large("intermediate", _operator(each), str(each.leaf), each.maker.line, 1, each.leaf.stored_bytes)
        for each in found
    ]


def _set_aside(executable: Any) -> frozenset[str] | None:
    assignment = getattr(executable.memory_analysis(), "serialized_buffer_assignment_proto", b"")
    try:
        (module,) = executable.runtime_executable().hlo_modules()
    except (AttributeError, ValueError, NotImplementedError, jax.errors.JaxRuntimeError):
        return None
    return set_aside(assignment, module.as_serialized_hlo_module_proto()) if assignment else None


def _waiting(program: Program, numbers: Sequence[float | int]) -> list[Large]:
    """Return the values kept between the stages of a program."""
    return [
        Large(
            "intermediate",
            name_of(operation),
            f"{str(spec.dtype).removeprefix('torch.')}{list(size)}",
            line,
            1,
            math.prod(size) * int(dtypes.to_jax(dtypes.on_device(spec.dtype)).itemsize),
        )
        for spec, size, operation, line in program.waiting(numbers)
    ]


def _operator(value: Alive) -> str:
    """Return "jit(program)/forward/aten::relu/max" → "aten::relu"; XLA's own word where it is XLA's own."""
    found = re.search(r'op_name="([^"]*)"', value.maker.attributes)
    named = [part for part in (found[1].split("/") if found else ()) if "::" in part]
    return named[-1] if named else value.maker.opcode


def _taken(program: Program, inputs: Sequence[Value], sizes: StoredSizes) -> list[Large]:
    """Return the inputs of a program, as the user calls them."""
    buffers = [value.buffer for value in inputs]
    found = []
    for name, buffer, spec in zip(name_buffers(buffers), buffers, program.graph.inputs, strict=True):
        part = list(buffer.sharding.shard_shape(buffer.shape))
        shape = f"{str(spec.dtype).removeprefix('torch.')}{part}"
        is_whole = len(program.target.devices) > 1 and buffer.sharding.is_fully_replicated
        found.append(Large("held", name, shape, None, 1, sizes.of_array(buffer), is_whole))
    return found


def _largest(values: Sequence[Large], most: int = 24) -> list[Large]:
    """Return equal ones together, the largest first."""
    found: dict[Any, Large] = {}
    for value in values:
        generic = re.sub(r"\d+", "*", value.name) if value.what == "held" else value.name
        key = value.what, generic, value.shape, value.line, value.is_whole
        known = found.get(key)
        if known is None:
            found[key] = replace(value)
        else:
            known.count += value.count
            known.bytes += value.bytes
            known.name = generic
    return sorted(found.values(), key=lambda each: -each.bytes)[:most]


def _held(
    program: Program,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    placed: Sequence[Any],
    sizes: StoredSizes,
) -> tuple[Held, int]:
    """Return the bytes of a device when a program has run, by what holds them; and the bytes that it was given away."""
    gc.collect()
    kinds = _kinds()
    given_away = {id(inputs[index].buffer) for index in program.donated}
    held, passing = Held(), 0
    sizes.ask(abstract_devices.living, program.target)
    for buffer in abstract_devices.living:
        if id(buffer) in given_away:
            passing += sizes.of_array(buffer)
        else:
            held.add(kinds.get(id(buffer)), sizes.of_array(buffer))
    for value, spec, sharding in zip(outputs, _specs(program), placed, strict=True):
        dtype = dtypes.to_jax(dtypes.on_device(spec.dtype))
        part = sharding.shard_shape(carried(spec.size, sharding))
        held.add(kinds.get(id(value)), sizes.of(part, dtype))
    return held, passing


def _specs(program: Program) -> list[Spec]:
    return [program.graph.specs[slot] for slot in program.graph.outputs]


def _kinds() -> dict[int, str]:
    """Return for each value and each buffer, by identity, whether it is a parameter, a gradient or state of an
    optimizer.
    """
    kinds: dict[int, str] = {}

    def note(tensor: object, kind: str) -> None:
        value = value_of(tensor) if isinstance(tensor, torch.Tensor) else None
        if value is not None:
            kinds.setdefault(id(value if value.buffer is None else value.buffer), kind)

    for thing in imported_objects.alive():
        kind = type(thing)  # not `isinstance`: a proxy would begin to work for us
        if issubclass(kind, torch.nn.Parameter):
            note(thing, "parameters")
            note(thing.grad, "gradients")
        elif issubclass(kind, torch.optim.Optimizer):
            for state in vars(thing).get("state", {}).values():  # a wrapper of another one has none
                for entry in state.values() if isinstance(state, dict) else ():
                    note(entry, "state")
    return kinds
