"""Search for the layout of a planned step: record its program once, and compile it for each layout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ... import compiler_options
from ...compile.program import Program
from ...ir.tape import Value
from ...step.sync import sync_device
from ...tensor.device import existing_devices
from ..device_specs import DeviceSpec, spec_named
from ..planned_step import planned_step
from ..planner import FAST, sizes_of
from ..step_plan import known_of
from . import automatic
from .input_roles import Role, RoleKind, roles_of
from .search import Found


@dataclass(slots=True)
class _Seen:
    """The last program of a step that multiplies what the model has."""

    model: torch.nn.Module
    program: Program | None = None
    numbers: Sequence[float | int] = ()
    roles: Sequence[Role] = ()

    def see(
        self,
        program: Program,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        numbers: Sequence[float | int],
        lines: Sequence[object],
    ) -> Sequence[object]:
        """Return how the results of a program would be divided, and keep the program."""
        roles = roles_of(program.graph, inputs, outputs, {"": self.model})
        if automatic.multiplies(program) and any(role.kind is RoleKind.PARAMETER for role in roles):
            self.program, self.numbers, self.roles = program, numbers, roles
        sizes_of(program, numbers)
        return program.placed(numbers)


def found(
    call: Callable[[], object],
    model: torch.nn.Module,
    mesh_shape: tuple[int, ...],
    devices: int | None,
    device: str | DeviceSpec | None,
    steps: int,
    most_compilations: int,
) -> Found:
    """Return the best layout of a call."""
    spec = spec_named(device) if isinstance(device, str) else device
    seen = _Seen(model)
    undo = compiler_options.choose({**compiler_options.chosen(), **FAST})
    try:
        with planned_step(seen.see, devices):
            for _ in range(steps):
                result = call()
                for each in existing_devices():
                    sync_device(each)
                del result
            program = seen.program
            if program is None:
                raise ValueError("find_layout(): the step multiplies no parameter of this model that is not marked yet")
            shape = automatic.mesh_shape_for(len(program.target.devices), mesh_shape)
            known = known_of(program.target if devices is None else None, spec)
            return automatic.search_for(program, seen.roles, seen.numbers, shape, known, most_compilations)
    finally:
        undo()
