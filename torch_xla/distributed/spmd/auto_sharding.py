"""Layouts that are looked for instead of marked by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..._engine.ir.partition_spec import Dims
from ..._engine.metrics.human_units import duration, size
from ..._engine.planning.device_specs import DeviceSpec
from ..._engine.planning.sharding_search import automatic, planned_search
from ..._engine.planning.sharding_search.search import Found, Trial
from .mesh import Mesh, PartitionSpec
from .xla_sharding import mark_sharding


@dataclass(frozen=True, slots=True)
class Layout:
    """How the parameters of a model and its batches are divided over a mesh. Printed, it is a report.

    `specs` has for each parameter, by name, the partition spec of `mark_sharding`; `batches` the entry for the first
    dimension of inputs of so many rows. Its axes are the indices of those of `mesh`. `seconds` is the least that a step
    takes, `peak` and `sent` are bytes of each device; `trials` are all layouts that were compiled, with their costs.
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
        """Marks the parameters of `model`, whose devices are those of the mesh; `ValueError` for one without a spec."""
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
    step: Callable[..., Any],
    *args: Any,
    mesh_shape: Sequence[int] | None = None,
    devices: int | None = None,
    device: str | DeviceSpec | None = None,
    steps: int = 2,
    most_compilations: int = 40,
) -> Layout:
    """The layout of `model`'s parameters and of its batches in which `step(*args)` is fastest on a mesh of this shape.

    The step is planned as by `torch_xla.debug.plan`, which tells what `devices`, `device` and `steps` mean: nothing
    runs and nothing is marked. Its last program that multiplies matrices is then compiled for one layout after the
    other: those that people write (a batch divided by rows, FSDP, tensor parallelism, each on each axis of the mesh),
    and from the best of them on with one group of parameters divided otherwise. Parameters of one name but for its
    numbers are a group. A layout whose peak the device has room for is better than one that it has not; among these the
    one that takes less time by the device's rates (a TPU v5p's, where the device is not known). No more than
    `most_compilations` are compiled. Tensors that are divided already stay so.

    Without `mesh_shape` the mesh is nearly a square. Batches are the tensors on `xla` that the step takes, and that are
    no parameters, buffers or state. `ValueError` for a mesh that has not so many devices, and for a step without
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
    return _layout(planned_search.found(lambda: step(*args), model, shape, devices, device, steps, most_compilations))


def auto_layout() -> Layout | None:
    """What was found last after `torch_xla.runtime.use_spmd(auto=True)`; `None` if nothing was yet.

    >>> import torch_xla.distributed.spmd as xs
    >>> xs.auto_layout() is None
    True
    """
    return None if automatic.last is None else _layout(automatic.last)


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
