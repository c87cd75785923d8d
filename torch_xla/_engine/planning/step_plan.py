"""The plan of a step: what its programs need on each device, how long they take, and what would help."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax

from ..metrics import user_lines
from ..metrics.human_units import duration, size
from ..runtime import device_memory, topologies
from ..runtime.device_assignment import Target
from ..runtime.topologies import Topology
from .collective_axes import NamedMesh
from .cost_model import Collective, Work
from .device_specs import DeviceSpec, spec_named, spec_of_kind
from .mesh_in_use import named_mesh
from .planner import Large, PlannedProgram, Planning, planning


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long a program takes, estimated: computing, sending, and both if they overlap wholly or not at all."""

    computing: float
    sending: float

    @property
    def least(self) -> float:
        """If all that is sent is sent while something is computed."""
        return max(self.computing, self.sending)

    @property
    def most(self) -> float:
        """If nothing is."""
        return self.computing + self.sending


def seconds_of(work: Work, spec: DeviceSpec, cycles: int = 0) -> Seconds:
    """Return the least time that the work takes a device with these rates; `cycles` counts more, if estimated."""
    if cycles and spec.clock:
        return Seconds(cycles / spec.clock, sum(each.sent for each in work.collectives) / spec.link_bandwidth)
    computing = sum(
        max(flops / spec.rate(dtype) if flops else 0.0, moved / spec.bandwidth) for flops, dtype, moved in work.steps
    )
    return Seconds(computing, sum(each.sent for each in work.collectives) / spec.link_bandwidth)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The needs of a step. Printed, it is a report.

    `programs` are the programs that it would run, in the order of their first run; `devices` is how many run each
    together. `memory` is what each of them has, in bytes, and `device` its rates; `None` where that is not known.
    `topology` is the machine that the programs were compiled for, if one was named; `is_virtual` says that they were
    compiled for virtual CPU devices, whose intermediates and collectives are not those of another platform.
    """

    programs: tuple[PlannedProgram, ...]
    devices: int
    memory: int | None
    device: DeviceSpec | None
    topology: str = ""
    is_virtual: bool = False

    @property
    def peak(self) -> int:
        """The most bytes that one device has at any time."""
        return max((program.peak for program in self.programs), default=0)

    @property
    def largest(self) -> PlannedProgram:
        """The program with the highest peak."""
        return max(self.programs, key=lambda program: program.peak)

    @property
    def flops(self) -> float:
        """Of products and convolutions, of one device, in all that runs."""
        return sum(program.work.all_flops * program.runs for program in self.programs)

    @property
    def collectives(self) -> dict[str, int]:
        """The bytes that each device handles in collectives of each kind, in all that runs."""
        found: dict[str, int] = {}
        for program in self.programs:
            for each in program.work.collectives:
                found[each.kind] = found.get(each.kind, 0) + each.bytes * program.runs
        return found

    @property
    def fits(self) -> bool | None:
        """Return whether a device has room for it; `None` if the memory of the device is not known."""
        return None if self.memory is None else self.peak <= self.memory

    def seconds(self, program: PlannedProgram) -> Seconds | None:
        """Return how long one run of a program takes at least; `None` without the rates of a device."""
        return None if self.device is None else seconds_of(program.work, self.device, program.cycles.all)

    @property
    def advice(self) -> list[str]:
        """Advice, the most helpful first; empty if there is none."""
        return _advice(self) if self.programs else []

    def __str__(self) -> str:
        return "\n".join(_report(self))


def plan_of(
    call: Callable[[], object],
    steps: int,
    devices: int | tuple[jax.Device, ...] | None,
    device: str | DeviceSpec | None,
    topology: str | Topology | None = None,
    rank: int | None = None,
) -> StepPlan:
    """Return the plan of `steps` calls; each ends with a sync."""
    spec = spec_named(device) if isinstance(device, str) else device
    if topology is not None:
        if devices is not None:
            raise ValueError("plan(): `topology` says how many devices there are; leave out `devices`.")
        devices = topologies.devices_of(topologies.named(topology))
    if rank is not None:
        _check_rank(rank, devices)
    with planning(devices, partial(axes_with, devices), rank) as found:
        for _ in range(steps):
            found.step(call)
    return planned(found, devices, spec, topology)


def _check_rank(rank: int, devices: int | tuple[jax.Device, ...] | None) -> None:
    if not isinstance(devices, tuple):
        raise ValueError("plan(): `rank` is that of a process among those of a `topology`, which has to be given.")
    if not 0 <= rank < len(devices):
        raise ValueError(f"plan(): there is no rank {rank} among the {len(devices)} devices of the topology.")


def planned(
    found: Planning,
    devices: int | tuple[jax.Device, ...] | None,
    spec: DeviceSpec | None = None,
    topology: str | Topology | None = None,
) -> StepPlan:
    """Return the plan that consists of the programs found so far."""
    spec, room = known_of(None if isinstance(devices, int) else found.target, spec)
    named = "" if topology is None else str(topologies.named(topology))
    return StepPlan(tuple(found.programs), _count(found.target), room, spec, named, isinstance(devices, int))


def axes_with(devices: int | tuple[jax.Device, ...] | None) -> tuple[NamedMesh | None, Sequence[int]]:
    """Return the user's mesh, and the slice of each device if there are several slices."""
    numbers = [getattr(each, "slice_index", 0) for each in devices] if isinstance(devices, tuple) else []
    return named_mesh(), numbers if len(set(numbers)) > 1 else ()


def known_of(target: Target | None, spec: DeviceSpec | None) -> tuple[DeviceSpec | None, int | None]:
    """Return the rates of a device and the bytes it has: those of `spec`, or of the devices of a `target` that
    exist.
    """
    if spec is None and target is not None:
        spec = spec_of_kind(target.kind)
    room = spec.memory if spec is not None else None
    if target is not None and target.is_compile_only:
        return spec, topologies.memory_of(target.device) or room
    if room is None and target is not None:
        room = device_memory.usage(target.device).limit // (len(target.local) if target.is_host else 1) or None
    return spec, room


def _count(target: Target | None) -> int:
    return len(target.devices) if target is not None else 1


_VIRTUAL = (
    "compiled for virtual CPU devices: what is held is right, but intermediates and collectives of a TPU or GPU may be "
    "several times smaller or larger; topology='v5e:4x4' or 'h100:8' asks the compiler of the device"
)


def _report(plan: StepPlan) -> list[str]:
    on = f"{plan.devices} devices" if plan.devices > 1 else "1 device"
    on = f"{plan.topology}, {on}" if plan.topology else on
    named = f" ({plan.device.name})" if plan.device is not None else ""
    rows = [f"Plan of {sum(program.runs for program in plan.programs)} programs on {on}{named}"]
    room = "" if plan.memory is None else f" of {size(plan.memory)}"
    verdict = {None: "", True: ": fits", False: ": DOES NOT FIT"}[plan.fits]
    rows.append(f"  peak of each device {size(plan.peak)}{room}{verdict}")
    if plan.is_virtual and plan.devices > 1:
        rows.append(f"  {_VIRTUAL}")
    for number, program in enumerate(plan.programs, 1):
        rows += [f"  {row}" for row in _report_of(plan, number, program)]
    rows += [f"  advice: {row}" for row in plan.advice]
    return rows


def _report_of(plan: StepPlan, number: int, program: PlannedProgram) -> list[str]:
    held = program.held
    end = f", ends at {user_lines.text(program.line)}" if program.line is not None else ""
    times = f", {program.runs} times" if program.runs > 1 else ""
    rows = [
        f"program {number}: {program.operations} operations{times}{end}; compiled in {program.compile_seconds:.1f} s"
    ]
    kinds = (
        ("parameters", held.parameters),
        ("optimizer state", held.state),
        ("gradients", held.gradients),
        ("other tensors", held.others),
        ("passed in", program.passing),
        ("intermediates", program.sizes.intermediate),
        ("the program", program.code),
    )
    rows.append(f"  memory {size(program.peak)}: " + ", ".join(f"{name} {size(n)}" for name, n in kinds if n))
    rows += [f"    {size(each.bytes):>8}  {_describe(each)}" for each in program.largest[:8]]
    rows.append(f"  computes {program.work.all_flops:.3g} FLOP, moves {size(program.work.bytes)}")
    rows += [f"    {_collective(each)}" for each in program.work.collectives[:8]]
    if program.donated:
        rows.append(f"  writes {size(program.sizes.aliased)} of results over {program.donated} inputs")
    rows += [f"  {row}" for row in _cycles(program)]
    seconds = plan.seconds(program)
    if seconds is not None:
        rows.append(
            f"  takes {duration(seconds.least)} to {duration(seconds.most)}: computing {duration(seconds.computing)}, "
            f"sending {duration(seconds.sending)}"
        )
    return rows


def _cycles(program: PlannedProgram) -> list[str]:
    cycles = program.cycles
    if not cycles.all:
        return []
    rows = [f"is estimated at {cycles.all:,} cycles by its compiler"]
    lines = [(user_lines.text(line) if line is not None else "no line", n) for line, n in cycles.by_line.items()]
    for name, count in [*lines[:6], *((name, n) for name, n in cycles.by_module.items() if name)][:12]:
        rows.append(f"  {count / cycles.all:>6.1%}  {name}")
    return rows


def _describe(value: Large) -> str:
    times = f"{value.count} × " if value.count > 1 else ""
    where = f" at {user_lines.text(value.line)}" if value.line is not None else ""
    return f"{times}{value.shape} {value.name or value.what}{where}"


def _collective(each: Collective) -> str:
    where = f" at {user_lines.text(each.line)}" if each.line is not None else ""
    along = f" along {each.axes}" if each.axes else ""
    return f"{size(each.bytes):>8}  {each.count} × {each.kind} among {each.devices}{along}, up to {each.largest}{where}"


def _advice(plan: StepPlan) -> list[str]:
    program = plan.largest
    held, most = program.held, program.sizes.intermediate
    owned = held.parameters + held.state + held.gradients
    found: list[tuple[int, str]] = []
    if plan.fits is False:
        if plan.devices > 1:
            wholes = [[each for each in one.largest if each.is_whole] for one in plan.programs]
            whole = max(wholes, key=lambda values: sum(each.bytes for each in values))
            spared = sum(each.bytes for each in whole) * (plan.devices - 1) // plan.devices
            if whole:
                first = _describe(whole[0])
                found.append((spared, f"divide what every device has all of, first {first}: up to {size(spared)} less"))
        else:
            found.append((owned, _over_devices(plan, owned, most)))
        if most:
            found.append(
                (
                    most,
                    f"intermediates take {size(most)}: torch.utils.checkpoint computes those of a layer again in its "
                    "backward pass; half the batch needs about half of them",
                )
            )
        if held.state:
            found.append(
                (held.state, f"the optimizer's state takes {size(held.state)}: offload it to the host, or shard it")
            )
    seconds = plan.seconds(program)
    if seconds is not None and seconds.sending > seconds.computing and program.work.collectives:
        dearest = program.work.collectives[0]
        found.append((0, f"sending takes longer than computing, most of it for {_collective(dearest).strip()}"))
    return [text for _, text in sorted(found, key=lambda each: -each[0])]


def _over_devices(plan: StepPlan, owned: int, rest: int) -> str:
    assert plan.memory is not None
    room = plan.memory - rest
    if room <= 0:
        return f"parameters, gradients and optimizer state take {size(owned)}: shard them over several devices (FSDP)"
    return (
        f"parameters, gradients and optimizer state take {size(owned)}: sharded over {-(-owned // room)} or more "
        "devices (FSDP) they would fit beside the intermediates"
    )
