"""Search for layouts, in place of marks by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..._engine import planning
from ..._engine.ir import Dims
from ..._engine.metrics import duration_text as duration
from ..._engine.metrics import size_text as size
from ..._engine.planning import DeviceSpec
from ..._engine.planning import FoundLayout as Found
from ..._engine.planning import LayoutTrial as Trial
from .mesh import Mesh, PartitionSpec
from .xla_sharding import mark_sharding


@dataclass(frozen=True, slots=True)
class Layout:
    """The division of a model's parameters and batches over a mesh. `print(layout)` shows a report.

    `specs` has the partition spec of `mark_sharding` for each parameter, by name. `batches` has the entry for the first
    dimension of the inputs, by the number of their rows. Axes are indices of the axes of `mesh`. `seconds` is a lower
    bound
    of the time of a step. `peak` and `sent` are bytes of each device. `trials` are all layouts that were compiled, with
    their costs.
    """

    mesh: Mesh
    specs: dict[str, PartitionSpec]
    batches: dict[int, tuple[int, ...] | int | None]
    seconds: float
    peak: int
    sent: int
    trials: tuple[Trial, ...]
    is_exhausted: bool

    def apply(self, model: torch.nn.Module) -> None:
        """Mark the parameters of `model`, whose devices are those of the mesh.

        Raises `ValueError` for a parameter without a spec.
        """
        for name, parameter in model.named_parameters():
            if name not in self.specs:
                raise ValueError(
                    f"Layout.apply(): the layout has no parameter {name!r}; it was found for another model"
                )
            mark_sharding(parameter, self.mesh, self.specs[name])

    def __str__(self) -> str:
        ends = "no change of one group would help" if self.is_exhausted else "all compilations were used up"
        rows = [
            f"Layout over a mesh of {self.mesh.mesh_shape}: {len(self.trials)} compiled, {ends}",
            f"  {duration(self.seconds)} or more a step; each device has {size(self.peak)}, sends {size(self.sent)}",
        ]
        rows += [f"  {spec!s:>20}  {name}" for name, spec in self.specs.items()]
        rows += [f"  {entry!s:>20}  rows of batches of {rows_}" for rows_, entry in self.batches.items()]
        rows.append("  tried:")
        for name, cost in self.trials:
            lacks = f", {size(cost.missing)} too many" if cost.missing else ""
            rows.append(f"  {duration(cost.seconds):>10}  {size(cost.peak):>10}{lacks}  {name}")
        return "\n".join(rows)


def find_layout(
    model: torch.nn.Module,
    step: Callable[..., object],
    *args: object,
    mesh_shape: Sequence[int] | None = None,
    devices: int | None = None,
    device: str | DeviceSpec | None = None,
    steps: int = 2,
    most_compilations: int = 40,
) -> Layout:
    """Find the layout of `model`'s parameters and batches in which `step(*args)` is fastest on a mesh of this shape.

    The step is planned as by `torch_xla.debug.plan`, which documents `devices`, `device` and `steps`: nothing runs and
    no tensor is marked. The last program of the step that multiplies matrices is then compiled for several layouts.
    The search begins with the usual ones: a batch divided by rows, FSDP and tensor parallelism, each along each axis of
    the mesh. It continues from the best of them by changing one group of parameters at a time. Parameters whose names
    differ only in numbers form a group. A layout that fits into the device's memory is better than one that does not;
    among these, the layout with the lower estimated time is better. The estimate uses the rates of the device, or those
    of a TPU v5p if the device is not known. At most `most_compilations` layouts are compiled. Tensors that are already
    divided stay divided.

    Without `mesh_shape` the mesh is nearly square. Batches are the inputs of the step on `xla` that are not parameters,
    buffers or state. Raises `ValueError` if the size of the mesh is not the number of devices, and for a step without
    products of this model's parameters.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> model, x = torch.nn.Linear(8, 8).to("xla"), torch.ones(4, 8, device="xla")
    >>> def step():
    ...     model(x).sum().backward()
    >>> layout = xs.find_layout(model, step, devices=2, steps=1, most_compilations=2)
    >>> sorted(layout.specs), layout.mesh.mesh_shape, len(layout.trials)
    (['bias', 'weight'], (2,), 2)
    """
    shape = tuple(mesh_shape or ())
    return _layout(planning.found_layout(lambda: step(*args), model, shape, devices, device, steps, most_compilations))


def auto_layout() -> Layout | None:
    """Return the last layout found after `torch_xla.runtime.use_spmd(auto=True)`, or `None`.

    >>> import torch_xla.distributed.spmd as xs
    >>> xs.auto_layout() is None
    True
    """
    found = planning.last_found_layout()
    return None if found is None else _layout(found)


def _layout(found: Found) -> Layout:
    mesh = Mesh(np.arange(int(np.prod(found.mesh_shape))), found.mesh_shape)
    specs: dict[str, PartitionSpec] = {}
    batches: dict[int, Any] = {}
    for group, dims in zip(found.groups, found.dims, strict=True):
        if group.is_batch:
            batches[group.size[0]] = _entries(dims)[0]
        specs |= dict.fromkeys(group.names, _entries(dims))
    cost = found.cost
    return Layout(mesh, specs, batches, cost.seconds, cost.peak, cost.sent, found.trials, found.is_exhausted)


def _entries(dims: Dims) -> PartitionSpec:
    return tuple(None if not axes else axes[0] if len(axes) == 1 else axes for axes in dims)
