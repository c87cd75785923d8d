"""Find the mesh axes that a collective travels along, from the groups of devices in XLA's text."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .hlo_parser import Instruction

_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?)?\s*\{([^}]*)\}")
_COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")


@dataclass(frozen=True, slots=True)
class NamedMesh:
    """The user's mesh: the names and sizes of its axes, and its devices by their place in the program."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    devices: tuple[int, ...]


# What is asked when a program is compiled: the user's mesh at that time, and the slice of each device.
Axes = Callable[[], tuple[NamedMesh | None, Sequence[int]]]


def no_axes() -> tuple[NamedMesh | None, Sequence[int]]:
    """Return no mesh and no slices."""
    return None, ()


def axes_of(instruction: Instruction, mesh: NamedMesh | None, slices: Sequence[int] = ()) -> str:
    """Return the axes that a collective travels along, joined by " × "; "" if no axes of the mesh fit.

    `slices` has the slice of each device; a collective between several of them also says so.
    """
    groups = groups_of(instruction)
    if not groups:
        return ""
    found = _along(groups, mesh) if mesh is not None else ""
    crosses = any(len({slices[each] for each in group if each < len(slices)}) > 1 for group in groups)
    return ", ".join(part for part in (found, "between slices" if crosses else "") if part)


def groups_of(instruction: Instruction) -> list[list[int]]:
    """Return the devices that take part together; for a permutation, source and target of each message."""
    text = instruction.attributes
    named = _NAMED.search(text)
    if named:
        return _of_mesh(named)
    counted = _COUNTED.search(text)
    if counted:
        devices = _permuted(counted[2], counted[3]).reshape(_numbers(counted[1]))
        return [list(map(int, group)) for group in devices.reshape(-1, devices.shape[-1])]
    listed = _LISTED.search(text)
    return [_numbers(each) for each in re.findall(r"\{([\d,]+)\}", listed[1])] if listed else []


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def _permuted(dims: str, order: str | None) -> np.ndarray:
    sizes = _numbers(dims)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    return devices.transpose(_numbers(order)) if order else devices


def _of_mesh(named: re.Match[str]) -> list[list[int]]:
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", named[1])}
    count = math.prod(sizes.values())
    devices = _permuted(named[2], named[3]) if named[2] else np.arange(count)
    # An axis may be used in part: `'axis_0':(2)4` are the 4 behind the first 2.
    used = re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", named[4])
    shape: list[int] = []
    moving: list[int] = []
    for name, size in sizes.items():
        cuts = sorted((int(before), int(part)) for each, before, part in used if each == name and part)
        whole = any(each == name and not part for each, _, part in used)
        done = 1
        for before, part in cuts:
            shape.append(before // done)
            moving.append(len(shape))
            shape.append(part)
            done = before * part
        if whole:
            moving.append(len(shape))
        shape.append(size // done)
    still = [place for place in range(len(shape)) if place not in moving]
    members = math.prod(shape[place] for place in moving)
    ordered = devices.reshape(shape).transpose([*still, *moving]).reshape(-1, members)
    return [list(map(int, group)) for group in ordered]


def _along(groups: Sequence[Sequence[int]], mesh: NamedMesh) -> str:
    places = {device: np.unravel_index(place, mesh.shape) for place, device in enumerate(mesh.devices)}
    if any(device not in places for group in groups for device in group):
        return ""
    moving: set[int] = set()
    for group in groups:
        coordinates = np.array([places[device] for device in group])
        moving.update(int(axis) for axis in np.flatnonzero((coordinates != coordinates[0]).any(axis=0)))
    return " × ".join(mesh.names[axis] for axis in sorted(moving))
