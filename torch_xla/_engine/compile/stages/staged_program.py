"""A program in stages: its executables, which equal stages share, and a run through all of them.

It is started as the executable of the whole graph would be: with the inputs, and the vectors of float and int numbers
that are arguments and the random keys. Numbers in which equal stages differ are arguments of their executable; those
that are none of the program are constants that wait here.
"""

import math
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain, repeat
from typing import Any
from weakref import WeakValueDictionary

import jax
import numpy as np

from ... import dtypes
from ...compat.names import jax as private
from ...ir.graph import Graph
from ...ir.sharding import ANY, Placed
from ...ir.value_spec import Spec
from ...lowering.machinery.jax_sharding import carried, to_jax
from ...metrics.events import Sizes
from ...runtime.buffers import KeptVector, put
from ...runtime.device_assignment import Target
from .. import jax_function, shard_mapped
from ..executable_key import Key, results_of
from .stage_cuts import Stage


class Executable:
    """The executable of one kind of stages."""

    __slots__ = ("__weakref__", "compiled")

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled


# Programs share what they have in common: the second step of a training often differs in its optimizer alone.
_executables: "WeakValueDictionary[Key, Executable]" = WeakValueDictionary()


class Wanted:
    """One executable of a program: a kind of stages with the numbers that are baked into it."""

    def __init__(self, stage: Stage, program: Key, numbers: Sequence[Any], arguments: tuple[int, ...]) -> None:
        self.stage = stage
        self.numbers = numbers
        baked = packed(stage.graph, [0 if i in arguments else number for i, number in enumerate(numbers)])
        results = results_of(stage.graph, stage.donated, program.target)
        whole = replace(program, code=stage.graph.code, donated=stage.donated, results=results)
        self.key = whole.of_numbers(arguments, baked)
        self.executable = _executables.get(self.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wanted) and self.key == other.key

    def divided(self, inputs: tuple[Spec, ...], results: tuple[Placed, ...]) -> "Wanted":
        """Return the same of values that are divided so: `results` say it of those for which it is asked."""
        graph = replace(self.stage.graph, inputs=inputs)
        stage = replace(self.stage, graph=graph)
        own = results_of(graph, stage.donated, self.key.target)
        chosen = tuple(mine if given is ANY else given for mine, given in zip(own, results, strict=True))
        found = copy(self)
        found.stage = stage
        found.key = replace(self.key, code=graph.code, results=chosen)
        found.executable = _executables.get(found.key)
        return found

    def fill(self, compiled: Any) -> None:
        """Give it the executable, also for other programs."""
        self.executable = _executables[self.key] = Executable(compiled)


def packed(graph: Graph, numbers: Sequence[float | int]) -> bytes:
    """Return the numbers of a graph as bytes, which differ for equal numbers of different types or signs of zero."""
    return struct.pack("".join("d" if t is float else "q" for t in graph.number_types), *numbers)


def wanted(
    stages: Sequence[Stage],
    program: Key,
    numbers: Sequence[float | int],
    arguments: frozenset[int],
    baked: set[int],
) -> list[Wanted]:
    """Return for each stage of a program the executable it needs; equal ones are one object.

    Of the whole graph's `numbers`, `arguments` are arguments of the program, and those `baked` must be baked in.
    """
    first: dict[Any, bytes] = {}
    differing: dict[object, set[int]] = {}
    for stage in stages:
        places = differing.setdefault(stage.kind, set())
        own = packed(stage.graph, [numbers[i] for i in stage.numbers])
        other = first.setdefault(stage.kind, own)
        for place, index in enumerate(stage.numbers):
            if index in arguments or own[8 * place : 8 * place + 8] != other[8 * place : 8 * place + 8]:
                places.add(place)
    for stage in stages:
        differing[stage.kind].difference_update(p for p, index in enumerate(stage.numbers) if index in baked)
    known: dict[Wanted, Wanted] = {}
    found = []
    for stage in stages:
        own_numbers = [numbers[i] for i in stage.numbers]
        each = Wanted(stage, program, own_numbers, tuple(sorted(differing[stage.kind])))
        found.append(known.setdefault(each, each))
    return found


class _Step:
    """A stage, ready to be started."""

    __slots__ = ("done_with", "draws", "floats", "inputs", "ints", "kept_floats", "kept_ints", "outputs", "start")

    def __init__(self, stage: Stage, compiled: Any, target: Target, floats: Any, ints: Any) -> None:
        self.start = shard_mapped.starter(target, compiled)
        self.inputs = stage.inputs
        self.outputs = stage.outputs
        self.done_with = stage.done_with
        self.draws = slice(*stage.draws) if stage.draws[0] < stage.draws[1] else None
        self.floats = floats  # positions of its numbers in those of the program, then the constants; None: no numbers
        self.ints = ints
        self.kept_floats, self.kept_ints = KeptVector(target), KeptVector(target)

    def on(self, slots: list[Any], vectors: Sequence[jax.Array]) -> Iterator[None]:
        """Return an iterator that runs the stage on the values in `slots` and stores its results there."""
        operands = map(list, (chain(map(slots.__getitem__, self.inputs), vectors),))
        results = chain.from_iterable(self.start(operands))
        put = slots.__setitem__
        return chain(map(put, self.outputs, results), map(put, self.done_with, repeat(None)))


class Staged:
    """The executables of a program's stages, called as one."""

    def __init__(
        self,
        graph: Graph,
        stages: Sequence[Stage],
        executables: Sequence[Wanted],
        numbers: Sequence[float | int],
        arguments: Sequence[int],
        target: Target,
    ) -> None:
        self._graph = graph
        self._target = target
        self._stages = stages
        self._executables = [each.executable for each in executables]
        self._dtypes = [dtypes.to_jax(dtypes.on_device(spec.dtype)) for spec in graph.inputs]
        floats, ints = jax_function.by_type(graph, arguments)
        pools = self._floats, self._ints = _Pool(floats, numbers, np.float64), _Pool(ints, numbers, np.int64)
        self._placed = _placed(graph, stages, self._executables, target)
        self._steps = []
        for stage, each in zip(stages, executables, strict=True):
            assert each.executable is not None
            own = jax_function.by_type(stage.graph, each.key.arguments)
            vectors = [pool.places([stage.numbers[i] for i in places]) for pool, places in zip(pools, own, strict=True)]
            self._steps.append(_Step(stage, each.executable.compiled, target, *vectors))
        for pool in pools:
            pool.close()

    def start(
        self,
        buffers: Sequence[jax.Array],
        floats: np.ndarray | None,
        ints: np.ndarray | None,
        keys: np.ndarray | None,
    ) -> Iterator[Sequence[jax.Array]]:
        """Start the stages one after the other when the iterator is advanced, and yield the results of the graph."""
        graph = self._graph
        if [*map(private.dtype_of, buffers)] != self._dtypes:
            # Said before anything is given away; an executable would say it too late.
            raise TypeError("an input has another dtype than the program was compiled for")
        slots: list[Any] = [*buffers, *[None] * (len(graph.specs) - len(buffers))]
        all_floats, all_ints = self._floats.with_constants(floats), self._ints.with_constants(ints)
        # Each is dropped when it has run, with what it holds.
        steps: deque[Iterator[Any] | None] = deque()
        for step in self._steps:
            own: list[jax.Array] = []
            if step.floats is not None:
                own.append(step.kept_floats.put(all_floats[step.floats]))
            if step.ints is not None:
                own.append(step.kept_ints.put(all_ints[step.ints]))
            if step.draws is not None:
                assert keys is not None
                own.append(put(keys[step.draws], self._target))
            steps.append(step.on(slots, own))
        steps.append(map(list, (map(slots.__getitem__, graph.outputs),)))
        steps.append(None)
        return filter(None, chain.from_iterable(iter(steps.popleft, None)))

    def memory_analysis(self) -> Sizes | None:
        """Return the peak memory of a run, if XLA reports it: one stage's memory and the waiting values."""
        found = [each.compiled.memory_analysis() for each in self._compiled()]
        if None in found:
            return None
        graph = self._graph
        bytes_of = self._bytes()
        peak, _ = self._peak()
        return Sizes(
            sum(bytes_of[: len(graph.inputs)]),
            sum(bytes_of[slot] for slot in graph.outputs),
            sum(bytes_of[slot] for stage in self._stages for slot in _given(stage) if slot < len(graph.inputs)),
            peak,
            sum(each.generated_code_size_in_bytes for each in found),
        )

    @property
    def output_shardings(self) -> list[object]:
        """Return JAX's shardings of the results of the whole graph."""
        return [self._placed[slot] for slot in self._graph.outputs]

    def _bytes(self) -> list[int]:
        """Return the bytes of each value on one device; inside a stage, on all devices."""
        return [_bytes(spec, self._placed.get(slot)) for slot, spec in enumerate(self._graph.specs)]

    def parts(self) -> list[tuple[Any, int]]:
        """Return the executables, each with the number of stages that share it."""
        return [(each.compiled, self._executables.count(each)) for each in self._compiled()]

    def waiting_at_peak(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the values that wait for a later stage when memory use peaks: slots, and sizes on one device."""
        return [(slot, _size(self._graph.specs[slot], self._placed.get(slot))) for slot in self._peak()[1]]

    def _compiled(self) -> list[Executable]:
        return [each for each in dict.fromkeys(self._executables) if each is not None]

    def _peak(self) -> tuple[int, list[int]]:
        inputs, results = len(self._graph.inputs), frozenset(self._graph.outputs)
        bytes_of = self._bytes()
        needs = {each: each.compiled.memory_analysis().temp_size_in_bytes for each in self._compiled()}
        waiting: dict[int, None] = {}
        between = peak = 0
        found: list[int] = []
        for stage, executable in zip(self._stages, self._executables, strict=True):
            assert executable is not None
            made = [slot for slot in stage.outputs if slot not in results]
            added = sum(bytes_of[slot] for slot in made)
            taken = sum(bytes_of[slot] for slot in _given(stage) if slot >= inputs)
            waiting.update(dict.fromkeys(made))
            if between + added - taken + needs[executable] > peak:
                peak, found = between + added - taken + needs[executable], list(waiting)
            between += added - sum(bytes_of[slot] for slot in stage.done_with if slot >= inputs)
            for slot in stage.done_with:
                waiting.pop(slot, None)
        return peak, found

    def as_text(self) -> str:
        """Return the HLO of each executable, with the numbers of its stages."""
        numbers: dict[Any, list[str]] = {}
        for number, executable in enumerate(self._executables):
            numbers.setdefault(executable, []).append(str(number))
        return "\n".join(
            f"// stage {', '.join(of)} of {len(self._stages)}\n{executable.compiled.as_text()}"
            for executable, of in numbers.items()
        )


class _Pool:
    """The numbers of one type that stages read: the program's arguments, then the constants."""

    def __init__(self, arguments: Sequence[int], numbers: Sequence[float | int], dtype: Any) -> None:
        self._places = {index: place for place, index in enumerate(arguments)}
        self._first = len(arguments)
        self._numbers = numbers
        self._dtype = dtype

    def places(self, indices: Sequence[int]) -> np.ndarray | None:
        """Return the positions of these numbers of the whole graph."""
        if not indices:
            return None
        return np.array([self._places.setdefault(index, len(self._places)) for index in indices])

    def close(self) -> None:
        """Note that all places are known."""
        self._constants = np.array([self._numbers[i] for i in list(self._places)[self._first :]], dtype=self._dtype)

    def with_constants(self, arguments: np.ndarray | None) -> np.ndarray:
        """Return all numbers of a run with these `arguments`; none of them if the program takes none."""
        return self._constants if arguments is None else np.concatenate((arguments, self._constants))


def _placed(
    graph: Graph, stages: Sequence[Stage], executables: Sequence[Any], target: Target
) -> dict[int, jax.sharding.Sharding]:
    """Return the sharding of each value that enters or leaves a stage."""
    if not target.is_spread:
        return dict.fromkeys([*range(len(graph.inputs)), *graph.outputs], target.everywhere)
    placed = {slot: to_jax(spec.sharding, target) for slot, spec in enumerate(graph.inputs)}
    for stage, executable in zip(stages, executables, strict=True):
        placed.update(zip(stage.outputs, jax.tree.leaves(executable.compiled.output_shardings), strict=True))
    return placed


def _size(spec: Spec, sharding: Any) -> tuple[int, ...]:
    return tuple(spec.size if sharding is None else sharding.shard_shape(carried(spec.size, sharding)))


def _bytes(spec: Spec, sharding: Any) -> int:
    return math.prod(_size(spec, sharding)) * int(dtypes.to_jax(dtypes.on_device(spec.dtype)).itemsize)


def _given(stage: Stage) -> list[int]:
    """Return the slots whose memory a stage is given."""
    return [stage.inputs[index] for index in stage.donated]
