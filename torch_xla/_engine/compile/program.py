"""A program: one graph, what may differ between its runs, and the executables compiled of it so far.

A large graph that repeats itself is compiled in stages; equal stages share an executable (`stage_cuts`,
`staged_program`).

Python numbers are baked into the first executable. When a later run has another number, that number becomes an
argument, so a learning rate that changes every step costs one more compilation in all. A number that a rule must see
stays baked, and each combination of such numbers has its own executable.
"""

import math
import operator
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import config, dtypes, metrics
from ..atomic import lock, uncollected
from ..compat.names import jax_starters
from ..ir.call_plan import Plan
from ..ir.graph import Graph, Operation, walk
from ..ir.value_spec import Spec
from ..lowering.machinery.registry import calls_python
from ..lowering.views.storage_access import PLACES
from ..metrics.events import Sizes
from ..metrics.observers import count_compile
from ..metrics.user_lines import Line
from ..runtime import launch_throttle
from . import (
    baked_numbers,
    changing_numbers,
    failing_op_search,
    graph_fingerprint,
    jax_function,
    output_shardings,
    oversized_values,
    shard_mapped,
)
from .disk import cache_folder, disk_cache
from .executable_key import Key
from .inlining import Inlined, inlined
from .jax_function import MustBake
from .jax_function import blame as blame
from .jax_function import culprits_of as culprits_of
from .launch_adapter import Ready as Ready
from .launch_adapter import whole, without
from .source_metadata import UNKNOWN
from .stages import stage_cuts, stage_executables, staged_program
from .xla_compile import compiled

# So often numbers may start to change before all places in storages become arguments, whether they changed or not.
_PATIENCE = 3

# A program that needs fewer bytes is started without asking how many are left.
_ALWAYS_FITS = 64 << 20


class _Compiled(NamedTuple):
    """The compilations so far: which numbers are arguments, and the executables by their baked numbers."""

    arguments: tuple[int, ...]
    executables: dict[bytes, Ready]


# The attributes of a program that a compilation changes.
_STATE = (
    "_inlined",
    "ends",
    "stages",
    "is_in_layers",
    "oversized",
    "_baked",
    "_promoted",
    "_promotions",
    "_floats",
    "_ints",
    "_must_bake",
    "_executables",
    "_compiled",
)


class Program:
    """The executables of one graph, for all numbers that it is run with."""

    def __init__(self, graph: Graph, key: Key) -> None:
        self.graph = graph
        self.key = key
        self.donated = key.donated
        self.target = key.target
        self.origins = UNKNOWN
        self.ends = self._smallest([range(len(graph.outputs))])
        self.bytes = sum(spec.numel * spec.dtype.itemsize for spec in graph.specs)  # of everything that it names
        self.allocates = self.bytes  # bytes of a run without its inputs; an upper bound until XLA reports them
        self.needs = 0  # bytes of a run with its inputs; 0 until XLA reports them
        self.fits = True  # the device's free memory need not be checked
        self.is_spread = key.target.is_spread  # it runs on several devices as one
        self.is_limited = launch_throttle.are_limited(key.target)  # whether it has to wait for its turn
        self.stages: tuple[stage_cuts.Stage, ...] | None = None  # none: not looked for, or not worth it
        self.oversized: str | None = None  # describes a value that is too large to be computed in parts
        self.is_in_layers = False  # whether it is cut all through, not just where an optimizer begins
        self._inlined = Inlined(graph, ())  # what the stages are of
        self._packer = struct.Struct("".join("d" if t is float else "q" for t in graph.number_types))
        self._baked: bytes | None = None
        self._promoted: tuple[int, ...] = ()
        self._promotions = 0  # how often numbers became arguments because they changed
        self._floats: list[int] = []
        self._ints: list[int] = []
        self._must_bake: set[int] = set()
        self._executables: dict[bytes, Ready] = {}
        self._compiled = _Compiled((), {})
        # The numbers that were asked about last, and what was found for them among what was compiled then.
        self._latest: tuple[Sequence[float | int] | None, _Compiled, Ready | None] = (None, self._compiled, None)
        self.turn = lock()  # held while a thread compiles it; others may run it
        self._dtypes = [dtypes.to_jax(dtypes.on_device(spec.dtype)) for spec in graph.inputs]
        # Values from before narrow dtypes were asked for have theirs.
        self._is_narrowed = any(dtypes.on_device(spec.dtype) is not spec.dtype for spec in graph.inputs)

    @property
    def arguments(self) -> tuple[int, ...]:
        """Return the numbers of the graph that are arguments of the executables; the others are constants."""
        return self._promoted

    @property
    def starts(self) -> int:
        """Return the number of executables that a run starts: one, or one for each stage."""
        return len(self.stages or (self,))

    @property
    def shared(self) -> tuple[tuple[int, int], ...]:
        """Return, for each stage that runs several times, how often it runs and its number of operations."""
        return tuple(stage_cuts.repeated(self.stages)) if self.stages else ()

    @cached_property
    def _calls_back(self) -> bool:
        return any(calls_python(operation.plan) for operation in self.graph.operations)

    @cached_property
    def _places(self) -> frozenset[int]:
        """Return the indices of the numbers that are positions in a view."""
        return frozenset(
            number
            for operation in self.graph.operations
            if operation.plan.op in PLACES
            for number in range(operation.first_number, operation.first_number + len(operation.plan.numbers))
        )

    @cached_property
    def reports(self) -> tuple[tuple[int, int], ...]:
        """The outputs that are looked at on the host, with the operations that make them: both by their place."""
        place = {slot: index for index, slot in enumerate(self.graph.outputs)}
        return tuple(
            (place[operation.first_output], index)
            for index, operation in enumerate(self.graph.operations)
            if operation.plan.effect is not None and operation.plan.effect.is_reported
        )

    def compiled_for(self, numbers: Sequence[float | int]) -> bool:
        """Return whether a run with these numbers needs no compilation."""
        return self.ready(numbers) is not None

    def ready(self, numbers: Sequence[float | int]) -> Ready | None:
        """Return the executable of a run with these numbers; `None` if it must be compiled first."""
        asked, compiled, ready = self._latest
        if asked is not numbers or compiled is not self._compiled:
            compiled = self._compiled
            packed = self._packer.pack(*numbers)
            arguments = compiled.arguments
            ready = compiled.executables.get(without(packed, arguments) if arguments else packed)
            if numbers.__class__ is tuple:  # what is changed later would be taken for what it was
                self._latest = numbers, compiled, ready
        return ready

    def compile_for(self, numbers: Sequence[float | int]) -> Sizes | None:
        """Make the executable of a run with these numbers, and return its memory, if XLA reports it."""
        self._compile(self._packer.pack(*numbers), numbers)
        sizes = self.sizes_for(numbers)
        if sizes is not None:
            self.allocates = sizes.outputs - sizes.aliased + sizes.intermediate
            self.needs = sizes.inputs + self.allocates
            self.fits = self.allocates < _ALWAYS_FITS and self.oversized is None
        return sizes

    def culprit(self, numbers: Sequence[float | int]) -> tuple[Plan, str] | None:
        """Return the operation that XLA cannot compile in a run with these numbers, and a line about it."""
        if self.stages:
            index = failing_op_search.of_stages(self.stages, self.key, numbers)
            index = None if index is None else self._inlined.origin[index]
        else:
            index = failing_op_search.of(self.graph, self.key, numbers)
        if index is None:
            return None
        return self.graph.operations[index].plan, f"XLA does not compile {self.origins.described(self.graph, index)}"

    def sizes_for(self, numbers: Sequence[float | int]) -> Sizes | None:
        """Return the memory that a run with these numbers needs on each device, if XLA reports it."""
        found = self.executable(numbers).memory_analysis()
        return found if found is None or isinstance(found, Sizes) else jax_function.sizes(found)

    def placed(self, numbers: Sequence[float | int]) -> list[Any]:
        """Return JAX's shardings of the results of a run with these numbers."""
        if not self.target.is_spread:
            return [self.target.everywhere] * len(self.graph.outputs)
        return jax.tree.leaves(self.executable(numbers).output_shardings)

    def parts(self, numbers: Sequence[float | int]) -> list[tuple[Any, int]]:
        """Return the executables of a run with these numbers, whole or by stage, each with how often it runs."""
        executable = self.executable(numbers)
        return executable.parts() if isinstance(executable, staged_program.Staged) else [(executable, 1)]

    def waiting(self, numbers: Sequence[float | int]) -> list[tuple[Spec, tuple[int, ...], Operation, Line | None]]:
        """Return the values that wait between stages when memory use peaks; none for a program without stages.

        Each has its size on one device, the operation that made it, and its line.
        """
        executable = self.executable(numbers)
        if not isinstance(executable, staged_program.Staged):
            return []
        graph, lines = self._inlined.graph, self._inlined.origins(self.origins).lines
        made_by = {slot: index for index, (_, slots) in enumerate(walk(graph)) for slot in slots}
        return [
            (graph.specs[slot], size, graph.operations[made_by[slot]], lines[made_by[slot]] if lines else None)
            for slot, size in executable.waiting_at_peak()
        ]

    def start(
        self,
        buffers: Sequence[jax.Array],
        numbers: Sequence[float | int],
        keys: np.ndarray | None,
        ready: Ready | None = None,
    ) -> Iterator[Sequence[jax.Array]]:
        """Return an iterator that starts the program when it is asked for its one element: the outputs.

        `ready` is the executable for these numbers, if it is known. The device may still be computing the outputs.
        `starter` says why they come in this form.
        """
        if ready is None:
            ready = self.ready(numbers) or self._compile(self._packer.pack(*numbers), numbers)
        if self._is_narrowed and any(map(operator.ne, [buffer.dtype for buffer in buffers], self._dtypes)):
            raise TypeError("an input has another dtype than the program was compiled for")
        if keys is None and ready.on_buffers is not None and not ready.floats and not ready.ints:
            start = ready.on_buffers
            if start.__class__ is jax_starters.Chain:
                return map(start.consume, map(start.execute, (buffers,)))
            return start((buffers,))
        floats = np.array([numbers[i] for i in ready.floats], dtype=np.float64) if ready.floats else None
        ints = np.array([numbers[i] for i in ready.ints], dtype=np.int64) if ready.ints else None
        return ready.start(buffers, floats, ints, keys)

    def lowered(self, numbers: Sequence[float | int]) -> jax.stages.Lowered:
        """Return the program before XLA compiles it: `as_text()` is its StableHLO."""
        return self._lower(numbers, self._executable_key(self._packer.pack(*numbers)))

    def optimized(self, numbers: Sequence[float | int]) -> str:
        """Return the optimized program as HLO text."""
        return str(self.executable(numbers).as_text())

    def executable(self, numbers: Sequence[float | int]) -> Any:
        """Return the executable for these numbers, XLA's own or a staged one; compile it if needed."""
        return (self.ready(numbers) or self._compile(self._packer.pack(*numbers), numbers)).executable

    def key_for(self, numbers: Sequence[float | int]) -> Key:
        """Return the key of the executable of a run with these numbers, which was compiled."""
        return self._executable_key(self._packer.pack(*numbers))

    def _executable_key(self, packed: bytes) -> Key:
        return self.key.of_numbers(self._promoted, without(packed, self._promoted))

    @uncollected
    def _compile(self, packed: bytes, numbers: Sequence[float | int]) -> Ready:
        # In a copy: others may run the program meanwhile, or compile it too, and see what was or what is, never less.
        attempt = copy(self)
        attempt._executables, attempt._must_bake = dict(self._executables), set(self._must_bake)
        ready = attempt._compile_alone(packed, numbers)
        attempt._compiled = _Compiled(attempt._promoted, attempt._executables)
        before = dict(vars(self))  # kept alive for a moment, so that nothing runs in the middle of the update
        vars(self).update({name: getattr(attempt, name) for name in _STATE})
        del before
        return ready

    def _compile_alone(self, packed: bytes, numbers: Sequence[float | int]) -> Ready:
        before, arguments = dict(self._executables), self._promoted  # alive: a new one can share their stages
        if self._baked is None:
            self._baked = packed
            # Baked numbers must be equal in all processes, but numbers and their earlier values differ among processes.
            is_alone = self.target.axis is None
            if not is_alone:
                self._must_bake.update(self._places)
            promoted: Sequence[int] = range(len(self.graph.number_types))
            if is_alone:
                promoted = changing_numbers.known_to_change(self.graph, numbers, self.origins.lines)
            self._set_promoted(promoted)
        else:
            self._promote(packed)
        metrics.metric("InputOutputAliasCount", metrics.Unit.SCALAR).add(len(self.donated))
        if self.stages is None:
            self._look_for_stages()
        if self.stages:
            executable = self._in_stages(packed, numbers)
            ready = Ready(executable, executable.start, self._floats, self._ints)
        else:
            executable = self._from_disk(packed) or self._in_turn(packed, numbers)
            start = shard_mapped.starter(self.target, executable)
            ready = Ready(executable, whole(start, self.target), self._floats, self._ints, start)
        if self._promoted == arguments:  # as before: what was to be an argument must be baked in
            self._executables = before
        self._executables[without(packed, self._promoted)] = ready
        return ready

    def _from_disk(self, packed: bytes) -> Any:
        if not self._may_be_kept():
            return None
        noted = self._noted(packed) if self._promoted else []
        if noted:
            self._must_bake.update(noted)
            self._set_promoted(self._promoted)
        start = time.perf_counter()
        with metrics.timed("PersistentCacheLoadTime"):
            key = self._executable_key(packed)
            stored = disk_cache.find(key, jax_function.signature(self.graph, key))
        if stored is None:
            return None
        count_compile(time.perf_counter() - start)
        return stored.executable

    def _in_turn(self, packed: bytes, numbers: Sequence[float | int]) -> Any:
        """Compile, unless another process that shares the folder compiles the same program meanwhile."""
        if not self._may_be_kept():
            return self._from_xla(packed, numbers)
        with disk_cache.turn(self._executable_key(packed)) as may_be_there:
            return (may_be_there and self._from_disk(packed)) or self._from_xla(packed, numbers)

    def _from_xla(self, packed: bytes, numbers: Sequence[float | int]) -> object:
        before = self._executable_key(packed) if self._may_be_kept() else None
        baked = len(self._must_bake)
        started = time.perf_counter()
        executable = compiled(self._lowered_with_fewest_arguments(packed, numbers), self.target)
        runs_here = self.target.axis is None and not self.target.is_compile_only
        if self.donated and runs_here and jax_starters.starter(executable) is None:
            # JAX starts it, and an interrupt may come between JAX's own steps: so nothing is donated.
            kept = self._lower(numbers, replace(self._executable_key(packed), donated=()))
            executable = compiled(kept, self.target)
        seconds = time.perf_counter() - started
        count_compile(seconds)
        metrics.count("StableHloCompile")
        if before is not None and self.oversized is None:
            if len(self._must_bake) > baked:
                disk_cache.note_baked(before, sorted(self._must_bake))
            key = self._executable_key(packed)
            disk_cache.keep(key, executable, seconds, jax_function.signature(self.graph, key))
        return executable

    def _look_for_stages(self) -> None:
        least = stage_cuts.LEAST_BYTES_ON_HOST if self.target.is_host else stage_cuts.LEAST_BYTES
        opened = inlined(self.graph)
        # A run that waits for its own beginning would fail where that did, with what it was given away.
        most = launch_throttle.MOST if self.is_limited else math.inf
        # JAX starts programs that call Python, and they may raise: so nothing must be donated (`_from_xla`).
        asked = config.stage_operations_on_tpu if self.target.platform == "tpu" else config.stage_operations
        spared = 0 if self._calls_back else asked()
        found = stage_cuts.of(opened.graph, self.donated, spared, least, most)
        self.is_in_layers = bool(found)
        # With stages, all gradients are in memory at once, as in PyTorch; a device may lack the memory for them.
        if not found and spared and self.target.is_host and not self.target.is_spread:
            found = stage_cuts.of_rounds(opened.graph, self.donated, most)
        ends = self.ends
        if found:
            place = {slot: index for index, slot in enumerate(opened.graph.outputs)}
            ends = self._smallest([[place[slot] for slot in each.outputs] for each in found if each.is_an_end])
        self._inlined, self.ends, self.stages = opened, ends, found

    def _in_stages(self, packed: bytes, numbers: Sequence[float | int]) -> Any:
        assert self.stages
        before = self._executable_key(packed) if self._may_be_kept() else None
        if before is not None:
            self._must_bake.update(self._noted(packed))
            self._set_promoted(self._promoted)
        baked = len(self._must_bake)
        compiled_by_xla = metrics.counter("StageCompile").value
        wanted, seconds = self._filled(numbers, before is not None)
        if seconds:
            count_compile(seconds)
        if metrics.counter("StageCompile").value != compiled_by_xla:
            metrics.count("StableHloCompile")
        if before is not None and len(self._must_bake) > baked:
            disk_cache.note_baked(before, sorted(self._must_bake))
        metrics.count("StagedProgram")
        metrics.count("SharedOperations", stage_cuts.spared_by([each.stage for each in wanted]))
        return staged_program.Staged(self._inlined.graph, self.stages, wanted, numbers, self._promoted, self.target)

    def _filled(self, numbers: Sequence[float | int], keeps: bool) -> tuple[list[staged_program.Wanted], float]:
        assert self.stages
        origins = self._inlined.origins(self.origins)
        built: list[staged_program.Wanted] = []  # alive, so that another attempt shares it
        while True:
            wanted = staged_program.wanted(self.stages, self.key, numbers, frozenset(self._promoted), self._must_bake)
            try:
                if self.target.is_spread:
                    graph = self._inlined.graph
                    between = [slot for stage in self.stages for slot in stage.outputs]
                    results = output_shardings.of_values(graph, between)
                    results |= dict(zip(graph.outputs, self.key.results, strict=True))
                    seconds = stage_executables.filled_in_order(wanted, self.stages, results, origins, keeps, built)
                    return built[-len(wanted) :], seconds
                return wanted, stage_executables.fill(wanted, self.stages, origins, keeps)
            except MustBake as error:
                self._must_bake.update(error.numbers)
                self._set_promoted(self._promoted)

    def _smallest(self, groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the smallest output of each group, by their places."""
        sizes = [self.graph.specs[slot].numel for slot in self.graph.outputs]
        return tuple(min(group, key=sizes.__getitem__) for group in groups if group)

    def _may_be_kept(self) -> bool:
        # An executable from disk shows the lines and names of the program that first compiled it.
        # An executable that calls Python holds the address of the callback.
        if self._calls_back or cache_folder.folder() is None or config.hlo_debug():
            return False
        # Nor one whose name another process could give to something else.
        return graph_fingerprint.is_named(self.graph) and graph_fingerprint.is_named(self._inlined.graph)

    def _noted(self, packed: bytes) -> list[int]:
        return disk_cache.baked(self._executable_key(packed), len(self.graph.number_types))

    def _lowered_with_fewest_arguments(self, packed: bytes, numbers: Sequence[float | int]) -> jax.stages.Lowered:
        while True:
            try:
                key = self._executable_key(packed)
                return self._lower(numbers, key, True, self._look_at_values)
            except MustBake as error:
                self._must_bake.update(error.numbers)
                self._set_promoted(self._promoted)

    def _look_at_values(self, jaxpr: object) -> None:
        self.oversized = oversized_values.in_program(jaxpr, self.target)

    def _promote(self, packed: bytes) -> None:
        assert self._baked is not None
        count = len(self.graph.number_types)
        settled = self._must_bake.union(self._promoted)
        differing = [
            i for i in range(count) if i not in settled and packed[8 * i : 8 * i + 8] != self._baked[8 * i : 8 * i + 8]
        ]
        if not differing or baked_numbers.are_asked():
            return
        # The first difference promotes the numbers that differ; the second all that can be: so a program whose
        # numbers start to change one after the other still compiles three times at the most. Places wait longer.
        kept = self._places if self._promotions < _PATIENCE else frozenset()
        others = [i for i in range(count) if i not in kept]
        promoted = sorted({*self._promoted, *differing, *(others if self._promoted else ())})
        self._promotions += 1
        self._executables.clear()  # first: they are found by keys that leave out other numbers
        self._set_promoted(promoted)

    def _set_promoted(self, promoted: Sequence[int]) -> None:
        arguments = tuple(i for i in promoted if i not in self._must_bake)
        floats, ints = jax_function.by_type(self.graph, arguments)
        self._promoted, self._floats, self._ints = arguments, floats, ints

    def _lower(
        self,
        numbers: Sequence[float | int],
        key: Key,
        compiled_at_once: bool = False,
        look: Callable[[object], object] | None = None,
    ) -> jax.stages.Lowered:
        return jax_function.lowered(self.graph, key, numbers, self.origins, compiled_at_once, look)
