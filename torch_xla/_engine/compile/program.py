"""A program: one graph with what may differ between its runs, and the executables made of it so far.

A large graph that repeats itself is compiled in stages, of which equal ones share an executable (`stages`, `staged`).

Python numbers are baked into the first executable. When a later run comes with another number, that number becomes an
argument: so a learning rate that changes every step costs one more compile, ever. A rule that must see a number keeps
it baked, and then each combination of such numbers has its own executable.
"""

import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .. import config, dtypes, metrics
from ..client.platform import is_host
from ..graph.graph import Graph
from ..graph.plan import Plan
from ..metrics.events import Sizes
from ..private import jax as private
from . import build, disk, fingerprint, function, staged, stages
from .function import MustBake
from .inlining import Inlined, inlined
from .origins import UNKNOWN

# The numbers each plan came with, by its place among the same plans of a graph. A plan that comes with other numbers in
# a new graph (the second step of an optimizer, whose state exists by now) will come with others again.
_seen_numbers: dict[tuple[Plan, int], tuple[float | int, ...]] = {}


class Program:
    """What one graph compiles to on one device."""

    def __init__(self, graph: Graph, donated: tuple[int, ...], device: jax.Device) -> None:
        self.graph = graph
        self.donated = donated
        self.device = device
        self.origins = UNKNOWN
        self.ends = self._smallest([range(len(graph.outputs))])
        self.bytes = sum(spec.numel * spec.dtype.itemsize for spec in graph.specs)  # of everything that it names
        self.allocates = self.bytes  # bytes of a run, beyond what it is given; at the most, until XLA has told
        self.stages: tuple[stages.Stage, ...] | None = None  # none: not looked for, or not worth it
        self._inlined = Inlined(graph, ())  # what the stages are of
        self._packer = struct.Struct("".join("d" if t is float else "q" for t in graph.number_types))
        self._baked: bytes | None = None
        self._promoted: tuple[int, ...] = ()
        self._floats: list[int] = []
        self._ints: list[int] = []
        self._must_bake: set[int] = set()
        self._executables: dict[bytes, Callable[..., Any]] = {}
        self._direct_calls: dict[bytes, Callable[[Sequence[jax.Array]], Sequence[jax.Array]] | None] = {}

    @property
    def arguments(self) -> tuple[int, ...]:
        """Which of the graph's numbers are arguments of the executables; the others are baked in."""
        return self._promoted

    @property
    def shared(self) -> tuple[tuple[int, int], ...]:
        """What is compiled once and run several times: how often, and of how many operations it is."""
        return tuple(stages.repeated(self.stages)) if self.stages else ()

    def compiled_for(self, numbers: Sequence[float | int]) -> bool:
        """Whether a run with these numbers needs no compile."""
        return self._key(self._packer.pack(*numbers)) in self._executables

    def compile_for(self, numbers: Sequence[float | int]) -> Sizes | None:
        """Makes the executable of a run with these numbers, and tells the memory it needs if XLA does."""
        found = self._compile(self._packer.pack(*numbers), numbers).memory_analysis()
        if found is None:
            return None
        sizes = found if isinstance(found, Sizes) else _sizes(found)
        self.allocates = sizes.outputs - sizes.aliased + sizes.intermediate
        return sizes

    def run(
        self, arrays: list[jax.Array], numbers: Sequence[float | int], keys: np.ndarray | None
    ) -> Sequence[jax.Array]:
        """Starts the program and returns its outputs, which the device may still be computing."""
        packed = self._packer.pack(*numbers)
        key = self._key(packed)
        if keys is None and not self._promoted:
            call = self._direct_calls.get(key)
            if call is not None:
                return call(arrays)
        executable = self._executables.get(key)
        if executable is None:
            executable = self._compile(packed, numbers)
        if self._floats:
            arrays.append(np.array([numbers[i] for i in self._floats], dtype=np.float64))  # type: ignore[arg-type]
        if self._ints:
            arrays.append(np.array([numbers[i] for i in self._ints], dtype=np.int64))  # type: ignore[arg-type]
        if keys is not None:
            arrays.append(keys)  # type: ignore[arg-type]
        with jax.enable_x64(True):
            outputs: Sequence[jax.Array] = executable(*arrays)
        return outputs

    def lowered(self, numbers: Sequence[float | int]) -> Any:
        """The program before XLA compiles it: `as_text()` is its StableHLO."""
        return self._lower(numbers)

    def optimized(self, numbers: Sequence[float | int]) -> str:
        """What XLA made of the program, as HLO text."""
        packed = self._packer.pack(*numbers)
        executable: Any = self._executables.get(self._key(packed)) or self._compile(packed, numbers)
        return str(executable.as_text())

    def _key(self, packed: bytes) -> bytes:
        if not self._promoted:
            return packed
        kept = bytearray(packed)
        for index in self._promoted:
            kept[8 * index : 8 * index + 8] = b"\0" * 8
        return bytes(kept)

    def _compile(self, packed: bytes, numbers: Sequence[float | int]) -> Any:
        before = list(self._executables.values())  # alive meanwhile, so that a new one can share their stages
        if self._baked is None:
            self._baked = packed
            self._set_promoted(_known_to_change(self.graph, numbers))
        else:
            self._promote(packed)
        metrics.metric("InputOutputAliasCount", metrics.Unit.SCALAR).add(len(self.donated))
        if self.stages is None:
            self._look_for_stages()
        executable = self._in_stages(packed, numbers) if self.stages else self._from_disk(packed)
        if executable is None:
            executable = self._from_xla(packed, numbers)
        self._executables[self._key(packed)] = executable
        # Not where dtypes are narrowed: values from before that was asked for have theirs, and JAX tells them apart.
        if all(dtypes.on_device(spec.dtype) is spec.dtype for spec in self.graph.inputs):
            self._direct_calls[self._key(packed)] = private.direct_call(executable)
        del before
        return executable

    def _from_disk(self, packed: bytes) -> Any:
        if not self._may_be_kept():
            return None
        noted = disk.baked(self._fingerprint(packed), self.device) if self._promoted else []
        if noted:
            self._must_bake.update(noted)
            self._set_promoted(self._promoted)
        with metrics.timed("PersistentCacheLoadTime"):
            stored = disk.find(self._fingerprint(packed), self.device)
        return stored.executable if stored is not None else None

    def _from_xla(self, packed: bytes, numbers: Sequence[float | int]) -> Any:
        before = self._fingerprint(packed) if self._may_be_kept() else ""
        baked = len(self._must_bake)
        started = time.perf_counter()
        with metrics.timed("CompileTime"):
            executable = self._lowered_with_fewest_arguments(numbers).compile()
        seconds = time.perf_counter() - started
        self._count_compile()
        if before:
            if len(self._must_bake) > baked:
                disk.note_baked(before, self.device, sorted(self._must_bake))
            arguments = len(self.graph.inputs) + bool(self._floats) + bool(self._ints) + bool(self.graph.draws)
            results = len(self.graph.outputs)
            disk.keep(self._fingerprint(packed), self.device, executable, seconds, arguments, results)
        return executable

    def _look_for_stages(self) -> None:
        least = stages.LEAST_BYTES_ON_HOST if is_host(self.device) else stages.LEAST_BYTES
        self._inlined = inlined(self.graph)
        self.stages = stages.of(self._inlined.graph, self.donated, config.stage_operations(), least)
        if self.stages:
            place = {slot: index for index, slot in enumerate(self._inlined.graph.outputs)}
            self.ends = self._smallest(
                [[place[slot] for slot in each.outputs] for each in self.stages if each.is_an_end]
            )

    def _in_stages(self, packed: bytes, numbers: Sequence[float | int]) -> Any:
        assert self.stages
        before = self._fingerprint(packed) if self._may_be_kept() else ""
        if before:
            self._must_bake.update(disk.baked(before, self.device))
            self._set_promoted(self._promoted)
        baked = len(self._must_bake)
        wanted, seconds = self._filled(numbers, bool(before))
        if seconds:
            metrics.metric("CompileTime").add(int(seconds * 1e9))
            self._count_compile()
        if before and len(self._must_bake) > baked:
            disk.note_baked(before, self.device, sorted(self._must_bake))
        metrics.count("StagedProgram")
        metrics.count("SharedOperations", stages.spared_by(self.stages))
        return staged.Staged(self._inlined.graph, self.stages, wanted, numbers, self._promoted)

    def _filled(self, numbers: Sequence[float | int], keeps: bool) -> tuple[list[staged.Wanted], float]:
        assert self.stages
        origins = self._inlined.origins(self.origins)
        while True:
            wanted = staged.wanted(self.stages, self.device, numbers, frozenset(self._promoted), self._must_bake)
            try:
                return wanted, build.fill(wanted, self.stages, self.device, origins, keeps)
            except MustBake as error:
                self._must_bake.update(error.numbers)
                self._set_promoted(self._promoted)

    def _smallest(self, groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Of each group of outputs, by their places, the smallest."""
        sizes = [self.graph.specs[slot].numel for slot in self.graph.outputs]
        return tuple(min(group, key=sizes.__getitem__) for group in groups if group)

    def _count_compile(self) -> None:
        metrics.count("UncachedCompile")
        metrics.count("CreateCompileHandles")
        metrics.count("StableHloCompile")

    def _may_be_kept(self) -> bool:
        # An executable from disk shows the lines and names of the program that first compiled it.
        return disk.folder() is not None and not config.hlo_debug()

    def _fingerprint(self, packed: bytes) -> str:
        return fingerprint.of_program(self.graph, self.donated, self._promoted, self._key(packed))

    def _lowered_with_fewest_arguments(self, numbers: Sequence[float | int]) -> Any:
        while True:
            try:
                return self._lower(numbers)
            except MustBake as error:
                self._must_bake.update(error.numbers)
                self._set_promoted(self._promoted)

    def _promote(self, packed: bytes) -> None:
        assert self._baked is not None
        count = len(self.graph.number_types)
        settled = self._must_bake.union(self._promoted)
        differing = [
            i for i in range(count) if i not in settled and packed[8 * i : 8 * i + 8] != self._baked[8 * i : 8 * i + 8]
        ]
        if not differing:
            return
        # The first difference promotes the numbers that differ; the second all that can be: so a program whose
        # numbers start to change one after the other still compiles three times at the most.
        self._set_promoted(range(count) if self._promoted else differing)
        self._executables.clear()
        self._direct_calls.clear()

    def _set_promoted(self, promoted: Sequence[int]) -> None:
        self._promoted = tuple(i for i in promoted if i not in self._must_bake)
        self._floats, self._ints = function.by_type(self.graph, self._promoted)

    def _lower(self, numbers: Sequence[float | int]) -> Any:
        return function.lowered(self.graph, self.donated, self.device, numbers, self._promoted, self.origins)


def _known_to_change(graph: Graph, numbers: Sequence[float | int]) -> list[int]:
    changed: list[int] = []
    places: Counter[Plan] = Counter()
    for operation in graph.operations:
        plan, first = operation.plan, operation.first_number
        if not plan.numbers:
            continue
        own = tuple(numbers[first : first + len(plan.numbers)])
        before = _seen_numbers.setdefault((plan, places[plan]), own)
        changed.extend(first + i for i, (old, new) in enumerate(zip(before, own, strict=True)) if old != new)
        places[plan] += 1
    return changed


def _sizes(found: Any) -> Sizes:
    """What XLA tells of one executable."""
    return Sizes(
        found.argument_size_in_bytes,
        found.output_size_in_bytes,
        found.alias_size_in_bytes,
        found.temp_size_in_bytes,
        found.generated_code_size_in_bytes,
    )
