"""A program: one graph with what may differ between its runs, and the executables made of it so far.

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
import jax.numpy as jnp
import numpy as np

from .. import config, dtypes, metrics
from ..graph.graph import Graph
from ..graph.plan import Plan
from ..lowering.call import NeedsStaticNumber, lower
from ..metrics.events import Sizes
from ..private import jax as private
from . import disk, fingerprint
from .origins import UNKNOWN, Origins

# The numbers each plan came with, by its place among the same plans of a graph. A plan that comes with other numbers in
# a new graph (the second step of an optimizer, whose state exists by now) will come with others again.
_seen_numbers: dict[tuple[Plan, int], tuple[float | int, ...]] = {}


class _MustBake(Exception):
    """Numbers that a rule looked at."""

    def __init__(self, numbers: range) -> None:
        super().__init__(numbers)
        self.numbers = numbers


class Program:
    """What one graph compiles to on one device."""

    def __init__(self, graph: Graph, donated: tuple[int, ...], device: jax.Device) -> None:
        self.graph = graph
        self.donated = donated
        self.device = device
        self.origins = UNKNOWN
        self.smallest_output = min(
            range(len(graph.outputs)), key=lambda i: graph.specs[graph.outputs[i]].numel, default=0
        )
        self._packer = struct.Struct("".join("d" if t is float else "q" for t in graph.number_types))
        self._baked: bytes | None = None
        self._promoted: tuple[int, ...] = ()
        self._floats: list[int] = []
        self._ints: list[int] = []
        self._must_bake: set[int] = set()
        self._executables: dict[bytes, Callable[..., Any]] = {}

    @property
    def arguments(self) -> tuple[int, ...]:
        """Which of the graph's numbers are arguments of the executables; the others are baked in."""
        return self._promoted

    def compiled_for(self, numbers: Sequence[float | int]) -> bool:
        """Whether a run with these numbers needs no compile."""
        return self._key(self._packer.pack(*numbers)) in self._executables

    def compile_for(self, numbers: Sequence[float | int]) -> Sizes | None:
        """Makes the executable of a run with these numbers, and tells the memory it needs if XLA does."""
        found = self._compile(self._packer.pack(*numbers), numbers).memory_analysis()
        if found is None:
            return None
        return Sizes(
            found.argument_size_in_bytes,
            found.output_size_in_bytes,
            found.alias_size_in_bytes,
            found.temp_size_in_bytes,
            found.generated_code_size_in_bytes,
        )

    def run(
        self, arrays: list[jax.Array], numbers: Sequence[float | int], keys: np.ndarray | None
    ) -> Sequence[jax.Array]:
        """Starts the program and returns its outputs, which the device may still be computing."""
        packed = self._packer.pack(*numbers)
        executable = self._executables.get(self._key(packed))
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
        if self._baked is None:
            self._baked = packed
            self._set_promoted(_known_to_change(self.graph, numbers))
        else:
            self._promote(packed)
        metrics.metric("InputOutputAliasCount", metrics.Unit.SCALAR).add(len(self.donated))
        executable = self._from_disk(packed)
        if executable is None:
            executable = self._from_xla(packed, numbers)
        self._executables[self._key(packed)] = executable
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
        metrics.count("UncachedCompile")
        metrics.count("CreateCompileHandles")
        metrics.count("StableHloCompile")
        if before:
            if len(self._must_bake) > baked:
                disk.note_baked(before, self.device, sorted(self._must_bake))
            arguments = len(self.graph.inputs) + bool(self._floats) + bool(self._ints) + bool(self.graph.draws)
            results = len(self.graph.outputs)
            disk.keep(self._fingerprint(packed), self.device, executable, seconds, arguments, results)
        return executable

    def _may_be_kept(self) -> bool:
        # An executable from disk shows the lines and names of the program that first compiled it.
        return disk.folder() is not None and not config.hlo_debug()

    def _fingerprint(self, packed: bytes) -> str:
        return fingerprint.of_program(self.graph, self.donated, self._promoted, self._key(packed))

    def _lowered_with_fewest_arguments(self, numbers: Sequence[float | int]) -> Any:
        while True:
            try:
                return self._lower(numbers)
            except _MustBake as error:
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

    def _set_promoted(self, promoted: Sequence[int]) -> None:
        self._promoted = tuple(i for i in promoted if i not in self._must_bake)
        self._floats = [i for i in self._promoted if self.graph.number_types[i] is float]
        self._ints = [i for i in self._promoted if self.graph.number_types[i] is not float]

    def _lower(self, numbers: Sequence[float | int]) -> Any:
        sharding = jax.sharding.SingleDeviceSharding(self.device)

        def describe(size: tuple[int, ...], dtype: np.dtype) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(size, dtype, sharding=sharding)

        with jax.enable_x64(True), private.located(None, ()):
            arguments = [describe(spec.size, dtypes.to_jax(dtypes.on_device(spec.dtype))) for spec in self.graph.inputs]
            if self._floats:
                arguments.append(describe((len(self._floats),), np.dtype(np.float64)))
            if self._ints:
                arguments.append(describe((len(self._ints),), np.dtype(np.int64)))
            if self.graph.draws:
                arguments.append(describe((self.graph.draws, 4), np.dtype(np.uint32)))
            function = as_function(self.graph, list(numbers), self._floats, self._ints, self.origins)
            return jax.jit(function, donate_argnums=self.donated, keep_unused=True).trace(*arguments).lower()


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


def as_function(
    graph: Graph, numbers: list[float | int], floats: list[int], ints: list[int], origins: Origins = UNKNOWN
) -> Callable[..., tuple[jax.Array, ...]]:
    """The graph as a function of its inputs, then of the vectors of float numbers, int numbers and random keys."""

    def program(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        rest = list(arguments[len(graph.inputs) :])
        values: list[Any] = list(arguments[: len(graph.inputs)])
        filled: list[Any] = list(numbers)
        for indices, dtype in ((floats, np.dtype(np.float64)), (ints, np.dtype(np.int64))):
            if indices:
                vector = rest.pop(0)
                for place, index in enumerate(indices):
                    filled[index] = private.weakly_typed(vector[place], dtype)
        keys = jax.random.wrap_key_data(rest.pop(0), impl="rbg") if graph.draws else None
        for index, operation in enumerate(graph.operations):
            plan, first = operation.plan, operation.first_number
            own = range(first, first + len(plan.numbers))
            key = keys[operation.draw] if plan.random and keys is not None else None
            try:
                with origins.of(graph, index):
                    values.extend(lower(plan, [values[s] for s in operation.operands], [filled[i] for i in own], key))
            except NeedsStaticNumber as error:
                if any(isinstance(filled[i], jax.Array) for i in own):
                    raise _MustBake(own) from error
                raise
        return tuple(jnp.asarray(values[slot]) for slot in graph.outputs)

    return program
