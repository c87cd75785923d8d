"""Find the mesh axes that a collective travels along, from the groups of devices in XLA's text."""

import functools
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
    crosses = len(set(slices)) > 1 and any(_differ(_slices_of(group, slices)).any() for group in groups)
    return ", ".join(part for part in (found, "between slices" if crosses else "") if part)


def groups_of(instruction: Instruction) -> list[np.ndarray]:
    """Return the devices that take part together, as the rows of one array for the groups of each size.

    For a permutation a row has the source and the target of a message.
    """
    text = instruction.attributes
    named = _NAMED.search(text)
    if named:
        return [_of_mesh(named)]
    counted = _COUNTED.search(text)
    if counted:
        devices = _permuted(counted[2], counted[3]).reshape(_numbers(counted[1]))
        return [devices.reshape(-1, devices.shape[-1])]
    listed = _LISTED.search(text)
    by_size: dict[int, list[list[int]]] = {}
    for each in re.findall(r"\{([\d,]+)\}", listed[1]) if listed else ():
        group = _numbers(each)
        by_size.setdefault(len(group), []).append(group)
    return [np.array(groups) for groups in by_size.values()]


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def _permuted(dims: str, order: str | None) -> np.ndarray:
    sizes = _numbers(dims)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    return devices.transpose(_numbers(order)) if order else devices


def _of_mesh(named: re.Match[str]) -> np.ndarray:
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
    return devices.reshape(shape).transpose([*still, *moving]).reshape(-1, members)


def _slices_of(group: np.ndarray, slices: Sequence[int]) -> np.ndarray:
    """Return the slice of each device; a device without one is where the first of its group is."""
    known = np.where(group < len(slices), group, group[:, :1])
    return np.array(slices)[np.minimum(known, len(slices) - 1)]


def _differ(rows: np.ndarray) -> np.ndarray:
    """Return for each row whether its elements differ."""
    return np.asarray((rows != rows[:, :1]).any(axis=1))


def _along(groups: Sequence[np.ndarray], mesh: NamedMesh) -> str:
    places = _places(mesh)
    if any(group.max() >= len(places) for group in groups):
        return ""
    coordinates = [np.unravel_index(places[group], mesh.shape) for group in groups]
    moving = [name for axis, name in enumerate(mesh.names) if any(_differ(along[axis]).any() for along in coordinates)]
    return " × ".join(moving)


@functools.lru_cache(maxsize=8)
def _places(mesh: NamedMesh) -> np.ndarray:
    """Return the place in the mesh of each device."""
    return np.argsort(np.array(mesh.devices))
