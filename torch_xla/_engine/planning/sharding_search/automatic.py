"""Automatic layouts: searched for when a program first uses parameters that are whole on each device.

The parameters are divided and marked, so later computations find them divided. Batches of later steps are divided as
the batches of the search.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch

from ... import config, metrics
from ...caching.bounded import put_last
from ...compile.inlining import inlined
from ...compile.program import Program
from ...ir.call_plan import Plan
from ...ir.sharding import Sharding
from ...ir.tape import Tape, Value
from ...ir.value_spec import Spec, sharded
from ...lowering.machinery.jax_sharding import carried, over_mesh, to_jax
from ...metrics.human_units import duration, size
from ...metrics.observers import observers
from ...processes import spmd_mode
from ...runtime import buffers
from ...runtime.device_assignment import Target
from ...step.step import Schedule
from ...tensor import sharding_annotations
from ..device_specs import DeviceSpec, device_specs
from ..step_plan import known_of
from .input_roles import Role, RoleKind, groups_of, modules_alive, roles_of
from .search import Found, Search

logger = logging.getLogger("torch_xla.sharding")

# Device whose rates are used where those of the actual devices are unknown.
ANY_DEVICE = "TPU v5p"

# Words in the names of operators that multiply matrices: without one there is nothing to divide for.
_PRODUCTS = ("mm", "linear", "conv", "matmul", "einsum", "attention")

# The last result.
_last: Found | None = None

# How later batches are divided, by dtype and size of a row.
_batches: dict[tuple[torch.dtype, tuple[int, ...]], tuple[int, ...]] = {}
_MOST_BATCHES = 256
_mesh_shape: tuple[int, ...] = ()
_decided: WeakKeyDictionary[Program, Sequence[tuple[int, Sharding | None]]] = WeakKeyDictionary()


def turn_on(mesh_shape: tuple[int, ...] = ()) -> None:
    """Search for layouts from now on, over a mesh of this shape if it is given."""
    global _mesh_shape
    spmd_mode.turn_on_automatic()
    _mesh_shape = mesh_shape
    apply_settings()


def last_found_layout() -> Found | None:
    """Return what the last search found; `None` before the first."""
    return _last


def apply_settings() -> None:
    """Begin to look for layouts, if that was asked for."""
    if spmd_mode.is_automatic():
        observers.register("divide_inputs", _arrange)


def mesh_shape_for(devices: int, asked: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the shape that was asked for; else that of a mesh that is nearly a square, the longer side first."""
    asked = asked or _mesh_shape or config.auto_spmd_mesh()
    if asked:
        if min(asked) < 1:
            raise ValueError(f"layouts are to be found for a mesh of shape {asked}: give sides of 1 or more")
        if math.prod(asked) != devices:
            raise ValueError(
                f"layouts are to be found for a mesh of shape {asked}, which has {math.prod(asked)} devices; there are "
                f"{devices}. Give sides whose product is {devices} (mesh_shape=, XLA_AUTO_SPMD_MESH), or none."
            )
        return asked
    side = next(side for side in range(math.isqrt(devices), 0, -1) if devices % side == 0)
    return (devices // side, side) if side > 1 else (devices,)


def search_for(
    program: Program,
    roles: Sequence[Role],
    numbers: Sequence[float | int],
    mesh_shape: tuple[int, ...],
    known: tuple[DeviceSpec | None, int | None],
    most_compilations: int,
) -> Found:
    """Return the best layout of a program's inputs."""
    groups = groups_of(program.graph, roles, config.auto_use_group_sharding())
    spec, room = known
    search = Search(program, numbers, groups, mesh_shape, spec or device_specs[ANY_DEVICE], room, most_compilations)
    found = search.run()
    metrics.count("LayoutSearch")
    metrics.count("LayoutCompile", len(found.trials))
    return found


def multiplies(program: Program) -> bool:
    """Return whether a program has products of matrices."""
    operations = inlined(program.graph).graph.operations
    return any(word in str(operation.plan.op) for operation in operations for word in _PRODUCTS)


def _arrange(schedule: Schedule, tape: Tape) -> bool:
    program = schedule.program
    if program is None or not program.target.is_spread or observers.describe_run is not None:
        return False
    wanted = _decided.get(program)
    if wanted is None:
        inputs, outputs = (
            [tape.values[slot] for slot in slots] for slots in (schedule.cut.inputs, schedule.cut.outputs)
        )
        numbers = [tape.numbers[index] for index in schedule.cut.numbers]
        wanted = _decided[program] = _decide(program, inputs, outputs, numbers)
    for index, sharding in wanted:
        _divide(tape, schedule.cut.inputs[index], sharding, program.target)
    return bool(wanted)


def _decide(
    program: Program, inputs: Sequence[Value], outputs: Sequence[Value], numbers: Sequence[float | int]
) -> Sequence[tuple[int, Sharding | None]]:
    """Return the inputs of a program that are to be divided otherwise than they are, and how."""
    global _last
    if not multiplies(program):
        return ()
    roles = roles_of(program.graph, inputs, outputs, modules_alive())
    shape = mesh_shape_for(len(program.target.devices))
    if any(role.kind is RoleKind.PARAMETER for role in roles):
        known = known_of(program.target, None)
        _last = search_for(program, roles, numbers, shape, known, config.auto_spmd_compilations())
        logger.info(_summary(_last))
        _remember(_last, roles, program.graph.inputs, program.target)
        dims = {i: d for group, d in zip(_last.groups, _last.dims, strict=True) for i in group.members}
    else:
        dims = {i: (axes,) for i, role in enumerate(roles) if (axes := _of_batch(role, program.graph.inputs[i], shape))}
    return [(index, sharding) for index, each in dims.items() if (sharding := over(program.target, shape, each))]


def over(target: Target, mesh_shape: tuple[int, ...], dims: object) -> Sharding | None:
    """Return the engine's sharding for these axes of a mesh."""
    return over_mesh(target.devices, mesh_shape, dims, target)


def _remember(found: Found, roles: Sequence[Role], specs: Sequence[Spec], target: Target) -> None:
    for group, dims in zip(found.groups, found.dims, strict=True):
        for index in group.members:
            tensor = roles[index].tensor
            if tensor is not None:
                sharding_annotations.remember(tensor, over(target, found.mesh_shape, dims))
            elif group.is_batch:
                put_last(_batches, (specs[index].dtype, specs[index].size[1:]), dims[0], _MOST_BATCHES)


def _of_batch(role: Role, spec: Spec, shape: tuple[int, ...]) -> tuple[int, ...]:
    if role.kind is not RoleKind.BATCH:
        return ()
    axes = _batches.get((spec.dtype, spec.size[1:]), ())
    return () if spec.size[0] % math.prod(shape[axis] for axis in axes) else axes


def _divide(tape: Tape, slot: int, sharding: Sharding | None, target: Target) -> None:
    """Divide an input of a tape that has begun."""
    value = tape.values[slot]
    wanted = to_jax(sharding, target)
    place = _places(tape)[slot]
    value.buffer = buffers.place(value.buffer, wanted, carried(value.spec.size, wanted))
    tape.code[place] = sharded(value.spec, sharding)


def _places(tape: Tape) -> Mapping[int, int]:
    """Return the positions of a tape's inputs in its code, by slot."""
    found, slot, place = {}, 0, 0
    while place < len(tape.code):
        entry = tape.code[place]
        if isinstance(entry, Spec):
            found[slot] = place
            slot += 1
            place += 1
        elif isinstance(entry, Plan):
            slot += len(entry.outputs)
            place += 1 + len(entry.operands)
    return found


def _summary(found: Found) -> str:
    ends = "no change of one group would help" if found.is_exhausted else "XLA_AUTO_SPMD_COMPILATIONS looks further"
    return (
        f"layout over a mesh of {found.mesh_shape}: {len(found.trials)} were compiled in {found.seconds:.1f} s, "
        f"{ends}; a step takes at least {duration(found.cost.seconds)} and {size(found.cost.peak)} on each device. "
        "print(torch_xla.distributed.spmd.auto_layout()) shows it."
    )
