"""Search: try layouts as people write them, then change one group after the other as long as that helps.

The cost of a layout is read from the program that XLA compiles for it, as in a plan: nothing runs.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, product
from typing import NamedTuple

from ... import compiler_options
from ...compile.executable_key import key_of
from ...compile.program import Program
from ...ir.graph import Graph
from ...ir.partition_spec import Dims
from ...ir.sharding import Sharding
from ...ir.value_spec import sharded
from ...lowering.machinery.jax_sharding import over_mesh
from ..device_specs import DeviceSpec
from ..planner import FAST, sizes_and_work
from ..step_plan import seconds_of
from .input_roles import InputGroup

# Use of a mesh axis in the layouts that the search begins with.
_WAYS = ("data", "fsdp", "tensor")
# The share of the time that a change has to save to count.
_LEAST = 1e-3


class ShardingCost(NamedTuple):
    """Cost of one run of a program on each device: missing bytes, seconds, bytes at the peak and sent."""

    missing: int
    seconds: float
    peak: int
    sent: int

    def is_better_than(self, other: "ShardingCost") -> bool:
        """Return whether it fits better, or as well and is faster."""
        if self.missing != other.missing:
            return self.missing < other.missing
        return self.seconds < other.seconds * (1 - _LEAST)


class Trial(NamedTuple):
    """One layout that was tried: what it was, or what was changed."""

    name: str
    cost: ShardingCost


Assignment = tuple[Dims, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The best layout of a search: how each group is divided, by the axes of the mesh for each dimension."""

    mesh_shape: tuple[int, ...]
    groups: tuple[InputGroup, ...]
    dims: Assignment
    cost: ShardingCost
    trials: tuple[Trial, ...]
    seconds: float
    is_exhausted: bool  # no change of one group would help; else the compilations were used up


@dataclass
class Search:
    """Looks for the layout of one program over a mesh of this shape."""

    program: Program
    numbers: Sequence[float | int]
    groups: Sequence[InputGroup]
    mesh_shape: tuple[int, ...]
    spec: DeviceSpec
    room: int | None
    most_compilations: int
    trials: list[Trial] = field(default_factory=list)
    _known: dict[Assignment, ShardingCost] = field(default_factory=dict)

    def run(self) -> Found:
        """Return the best that was found."""
        started = time.perf_counter()
        undo = compiler_options.choose({**compiler_options.chosen(), **FAST})
        try:
            best, is_exhausted = self._best()
        finally:
            undo()
        taken = time.perf_counter() - started
        return Found(
            self.mesh_shape, tuple(self.groups), best, self._known[best], tuple(self.trials), taken, is_exhausted
        )

    def _best(self) -> tuple[Assignment, bool]:
        """Return the best, and whether nothing better is left to be tried."""
        best, is_exhausted = self._best_of_known_ways(), False
        while not is_exhausted and len(self._known) < self.most_compilations:
            changed = self._improved(best)
            is_exhausted = changed == best and len(self._known) < self.most_compilations
            best = changed
        return best, is_exhausted

    def sharding(self, dims: Dims) -> Sharding | None:
        """Return the engine's sharding for the dimensions of a group."""
        target = self.program.target
        return over_mesh(target.devices, self.mesh_shape, dims, target)

    def _best_of_known_ways(self) -> Assignment:
        best: Assignment = tuple(tuple(() for _ in group.size) for group in self.groups)
        self._cost(best, "whole on each device")
        for name, assignment in self._known_ways():
            if self._is_better(assignment, best, name):
                best = assignment
        return best

    def _is_better(self, assignment: Assignment, best: Assignment, name: str) -> bool:
        if assignment not in self._known and len(self._known) >= self.most_compilations:
            return False
        return self._cost(assignment, name).is_better_than(self._known[best])

    def _known_ways(self) -> Iterator[tuple[str, Assignment]]:
        count = len(self.mesh_shape)
        is_even = len(set(self.mesh_shape)) == 1  # then it is all one which axis does what
        for ways in combinations_with_replacement(_WAYS, count) if is_even else product(_WAYS, repeat=count):
            name = " × ".join(f"{way} {side}" for way, side in zip(ways, self.mesh_shape, strict=True))
            yield name, tuple(self._by_hand(group, ways) for group in self.groups)

    def _by_hand(self, group: InputGroup, ways: tuple[str, ...]) -> Dims:
        """Divide as people do: a batch by rows, products by what widens or narrows, and FSDP the longest dimension."""
        dims: list[tuple[int, ...]] = [()] * len(group.size)
        if group.is_batch:
            return self._with(group, dims, 0, tuple(axis for axis, way in enumerate(ways) if way != "tensor"))
        if len(group.size) > 1:
            narrowing = int(group.size[0] < group.size[1])
            dims = [*self._with(group, dims, narrowing, tuple(a for a, way in enumerate(ways) if way == "tensor"))]
        axes = tuple(axis for axis, way in enumerate(ways) if way == "fsdp")
        for dim in sorted(range(len(dims)), key=lambda dim: (bool(dims[dim]), -group.size[dim])):
            tried = self._with(group, dims, dim, (*dims[dim], *axes))
            if axes and tried != tuple(dims):
                return tried
        return tuple(dims)

    def _with(self, group: InputGroup, dims: Sequence[tuple[int, ...]], dim: int, axes: tuple[int, ...]) -> Dims:
        """Return `dims` with these axes for one dimension, if they divide it evenly."""
        parts = math.prod(self.mesh_shape[axis] for axis in axes)
        axes = dims[dim] if group.size[dim] % parts else axes
        return (*dims[:dim], axes, *dims[dim + 1 :])

    def _improved(self, best: Assignment) -> Assignment:
        """Return the best layout after changing one group after the other, each in one axis of the mesh."""
        for place, group in enumerate(self.groups):
            for dims in list(self._neighbours(group, best[place])):
                tried = (*best[:place], dims, *best[place + 1 :])
                if self._is_better(tried, best, f"{group.name} {dims}"):
                    best = tried
        return best

    def _neighbours(self, group: InputGroup, dims: Dims) -> Iterator[Dims]:
        for axis in range(len(self.mesh_shape)):
            without = tuple(tuple(each for each in axes if each != axis) for axes in dims)
            if without != dims:
                yield without
            for dim in range(1 if group.is_batch else len(dims)):
                moved = self._with(group, without, dim, tuple(sorted((*without[dim], axis))))
                if moved not in (dims, without):
                    yield moved

    def _cost(self, assignment: Assignment, name: str) -> ShardingCost:
        if assignment not in self._known:
            sizes, work = sizes_and_work(self._laid_out(assignment), self.numbers)
            peak = sizes.inputs + sizes.outputs - sizes.aliased + sizes.intermediate
            missing = 0 if self.room is None else max(0, peak - self.room)
            found = ShardingCost(
                missing, seconds_of(work, self.spec).most, peak, sum(each.sent for each in work.collectives)
            )
            self._known[assignment] = found
            self.trials.append(Trial(name, found))
        return self._known[assignment]

    def _laid_out(self, assignment: Assignment) -> Program:
        graph, specs = self.program.graph, list(self.program.graph.inputs)
        for group, dims in zip(self.groups, assignment, strict=True):
            for index in group.members:
                specs[index] = sharded(specs[index], self.sharding(dims))
        laid_out = Graph(tuple(specs), graph.operations, graph.outputs)
        return Program(laid_out, key_of(laid_out, self.program.donated, self.program.target))
