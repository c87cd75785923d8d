"""Roles of a program's inputs in a layout: parameters, inputs divided like a parameter, and batches."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from ... import imported_objects
from ...compat.names.torch import address_of
from ...ir.graph import Graph
from ...ir.input_output_alias import successors
from ...ir.tape import Value
from ...ir.value_spec import Spec
from ...tensor.variable_names import value_of


class RoleKind(Enum):
    """Role of an input."""

    PARAMETER = "parameter"
    FOLLOWER = "follower"  # the gradient of a parameter, or state of an optimizer of its size
    BATCH = "batch"
    WHOLE = "whole"  # buffers, scalars, and inputs that are divided already


@dataclass(slots=True)
class Role:
    """The role of one input, and the parameter it belongs to."""

    kind: RoleKind = RoleKind.BATCH
    name: str = ""
    owner: int = -1  # the parameter that a follower belongs to
    tensor: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class InputGroup:
    """Inputs that are divided alike: batches, or parameters of one size whose names differ only in numbers."""

    name: str
    size: tuple[int, ...]  # for a batch the first dimension only
    members: tuple[int, ...]
    names: tuple[str, ...]  # of its parameters
    bytes: int

    @property
    def is_batch(self) -> bool:
        """Return whether it is a group of batches."""
        return not self.names


def modules_alive() -> dict[str, torch.nn.Module]:
    """Return the outermost modules on `xla` by the prefix of their parameters' names, which is empty for one module."""
    # A module whose constructor has raised has no submodules.
    found = [
        thing
        for thing in imported_objects.alive()
        if issubclass(type(thing), torch.nn.Module) and "_modules" in vars(thing)
    ]
    inside = {id(child) for module in found for child in module.children()}
    roots = [
        module
        for module in found
        if id(module) not in inside and any(p.device.type == "xla" for p in module.parameters())
    ]
    if len(roots) == 1:
        return {"": roots[0]}
    return {f"{type(module).__name__}_{index}.": module for index, module in enumerate(roots)}


def roles_of(
    graph: Graph, inputs: Sequence[Value], outputs: Sequence[Value], modules: Mapping[str, torch.nn.Module]
) -> list[Role]:
    """Return the role of each input. An updated input has the role of its new value."""
    index_of = {id(value): index for index, value in enumerate(inputs)}
    index_of |= {id(outputs[output]): index for index, output in successors(graph).items()}
    roles = [Role() if spec.size and spec.sharding is None else Role(RoleKind.WHOLE) for spec in graph.inputs]
    owners: dict[int, int] = {}

    def index(tensor: object) -> int:
        value = value_of(tensor) if isinstance(tensor, torch.Tensor) else None
        return -1 if value is None else index_of.get(id(value), -1)

    for prefix, module in modules.items():
        for name, buffer in module.named_buffers():
            if (place := index(buffer)) >= 0:
                roles[place] = Role(RoleKind.WHOLE, prefix + name)
        for name, parameter in module.named_parameters():
            if (place := index(parameter)) >= 0:
                owners[id(parameter)] = place
                roles[place] = Role(_kind(parameter, graph.inputs[place]), prefix + name, place, parameter)
            _follow(roles, graph, index(parameter.grad), place)
    for thing in imported_objects.alive():
        if issubclass(type(thing), torch.optim.Optimizer):
            for parameter, state in vars(thing).get("state", {}).items():  # a wrapper of another optimizer has no state
                for entry in state.values() if isinstance(state, dict) else ():
                    _follow(roles, graph, index(entry), owners.get(id(parameter), -1))
    return roles


def _kind(parameter: torch.Tensor, spec: Spec) -> RoleKind:
    value = value_of(parameter)
    is_marked = value is not None and address_of(parameter.untyped_storage()) in value.device.marks
    return RoleKind.WHOLE if is_marked or spec.sharding is not None or not spec.size else RoleKind.PARAMETER


def _follow(roles: list[Role], graph: Graph, place: int, owner: int) -> None:
    if place < 0 or roles[place].kind is RoleKind.PARAMETER:
        return
    is_alike = owner >= 0 and graph.inputs[place].size == graph.inputs[owner].size
    follows = is_alike and roles[owner].kind is RoleKind.PARAMETER and graph.inputs[place].sharding is None
    roles[place] = Role(RoleKind.FOLLOWER if follows else RoleKind.WHOLE, owner=owner)


def groups_of(graph: Graph, roles: Sequence[Role], by_name: bool) -> list[InputGroup]:
    """Return the groups of a program's inputs, largest first; without `by_name` each parameter is a group."""
    gathered: dict[Any, list[int]] = {}
    for index, role in enumerate(roles):
        size = graph.inputs[index].size
        if role.kind is RoleKind.PARAMETER:
            name = re.sub(r"(?<![^.])\d+(?![^.])", "*", role.name) if by_name else role.name
            gathered.setdefault((name, size), []).append(index)
        elif role.kind is RoleKind.BATCH:
            gathered.setdefault(("", size[:1]), []).append(index)
    found = []
    for (name, size), members in gathered.items():
        names = tuple(roles[index].name for index in members if roles[index].kind is RoleKind.PARAMETER)
        own = set(members)
        members += [i for i, role in enumerate(roles) if role.kind is RoleKind.FOLLOWER and role.owner in own]
        total = sum(graph.inputs[i].numel * graph.inputs[i].dtype.itemsize for i in members)
        found.append(InputGroup(name or f"batches of {size[0]}", size, tuple(members), names, total))
    return sorted(found, key=lambda group: (group.is_batch, -group.bytes, -math.prod(group.size), group.name))
