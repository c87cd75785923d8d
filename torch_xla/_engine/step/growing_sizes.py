"""Pass 5, growing sizes: one program for graphs that differ only in a size that grows by one from step to step.

A text that is written token by token has masks, scores and positions of another size at every step, so each step would
be a program of its own. Once two graphs in a row that read a sequence which was appended to have grown, such graphs run
as one program: its arrays have the capacity of the next power of two, and the length is a number. A graph that cannot
be computed so keeps its own program.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

import jax
import numpy as np

from .. import config, dtypes, metrics
from ..atomic import uncollected
from ..caching import least_recently_used
from ..compile import symbolic_length
from ..compile.graph_sizes import Fixed, outline_of, with_sizes
from ..compile.inlining import inlined
from ..ir.graph import Graph, cut
from ..ir.input_output_alias import takers
from ..ir.tape import Value
from ..ir.value_spec import Spec
from ..lowering.machinery.capacity_ops import CUT
from ..lowering.machinery.registry import calls_python
from ..tensor.spare_capacity import Grown, Padded
from .step import Draft

# The least capacity: a text of a few hundred tokens needs no other one.
_LEAST = 256  # a power of two
# A size of 1 is repeated where another one is not.
_SHORTEST = 2

# Two programs that take turns grow by two each. What grows by more is no text.
_MOST_AT_ONCE = 4

_shared, _refused = metrics.counter("GrowingSizesShared"), metrics.counter("GrowingSizesRefused")


@dataclass(slots=True)
class _Family:
    """Graphs of one outline whose sizes are linear functions of one length."""

    sizes: np.ndarray  # of one of them
    slopes: np.ndarray
    place: int  # of the size that is its length
    # By capacity, with the least length that each is for; `None`: it cannot be computed so.
    graphs: dict[int, tuple[int, Graph | None]] = field(default_factory=dict)

    def length(self, sizes: np.ndarray) -> int | None:
        """Return the length of the graph of these sizes; `None` if it is not of this family."""
        steps = int(sizes[self.place] - self.sizes[self.place])
        return int(sizes[self.place]) if np.array_equal(sizes, self.sizes + steps * self.slopes) else None

    def graph(self, example: Graph, length: int) -> Graph | None:
        """Return the graph of the capacity for `length`.

        A graph serves lengths from the one it was made for up to its capacity: a shorter length makes it again, of
        `example`.
        """
        capacity = max(_LEAST, 1 << (length - 1).bit_length())
        least, found = self.graphs.get(capacity, (capacity + 1, example))
        if found is None or least <= length:
            return found
        try:
            found = self._made(example, length, capacity)
        except Exception as error:  # a rule may raise anything at sizes that no call had
            metrics.count("GrowingSizesRefused")
            why.append(str(error))
            del why[:-_KEPT]
            found = None
        self.graphs[capacity] = length, found
        return found

    @uncollected
    def _made(self, example: Graph, least: int, capacity: int) -> Graph:
        def at(length: int) -> Graph:
            sizes = self.sizes + (length - self.sizes[self.place]) * self.slopes
            return with_sizes(example, sizes.tolist())

        lengths = least, capacity - 1, capacity
        growth = symbolic_length.Growth(tuple(map(at, lengths)), lengths)
        made = symbolic_length.graph_of(growth)
        if made.inputs != example.inputs:
            raise Fixed("its inputs grow")
        plan = made.operations[0].plan

        def run(keys: jax.Array | None, *operands: jax.Array) -> list[jax.Array]:
            drawn = None if keys is None else jax.random.wrap_key_data(keys, impl="rbg")
            numbers = [kind() for kind in plan.numbers[:-1]]
            return symbolic_length.computed(plan, operands, [*numbers, capacity], drawn)

        with jax.enable_x64(True):
            described = [jax.ShapeDtypeStruct(s.size, dtypes.to_jax(dtypes.on_device(s.dtype))) for s in made.inputs]
            keys = jax.ShapeDtypeStruct((plan.draws, 4), np.uint32) if plan.draws else None
            jax.eval_shape(run, keys, *described)
        return made


@dataclass(slots=True)
class _Form:
    """The sizes of the graphs of one outline, as far as they were seen."""

    latest: np.ndarray
    slopes: np.ndarray | None = None  # what graphs of this outline grow by
    families: list[_Family] = field(default_factory=list)
    used: int = 0

    def family_of(self, sizes: np.ndarray, reads_grown: bool) -> tuple[_Family, int] | None:
        """Return the family of a graph of this outline, and its length; `None` if it is not known to grow.

        Only a graph that reads a sequence which was appended to shows that its sizes grow.
        """
        if self.slopes is None:
            growth, self.latest = sizes - self.latest, sizes
            step = int(np.gcd.reduce(growth))
            if not reads_grown or not (growth == step).any() or not 0 < step <= _MOST_AT_ONCE:
                return None
            self.slopes = growth // step
        for family in self.families:
            length = family.length(sizes)
            if length is not None:
                return family, length
        place = int(np.where(self.slopes == 1, sizes, -1).argmax())
        family = _Family(sizes, self.slopes, place)
        self.families.append(family)
        del self.families[:-_KEPT]
        return family, int(sizes[place])


_forms: dict[Hashable, _Form] = {}

# The number of families of an outline that are kept, and of reasons for refusals.
_KEPT = 16

# Why graphs whose sizes grow have programs of their own: the latest reasons.
why: list[str] = []


def share(draft: Draft) -> Draft:
    """Put the graph that all of its lengths share in place of a graph whose sizes grow."""
    part = draft.part
    if part is None or not part.graph.outputs or draft.is_common or draft.device.spread is not None:
        return draft
    # A program of its own cuts the value that a read asks for from its room.
    outputs = [slot for slot in part.outputs if draft.operations[draft.producer[slot]].plan.op != CUT]
    if not outputs:
        return draft
    if len(outputs) < len(part.outputs):
        part = cut(draft.inputs, draft.operations, draft.chosen, outputs)
    found = shared(part.graph)
    if found is not None:
        draft.part, draft.shared, draft.outputs = part, found, outputs
        draft.donated = takers(found[0], draft.donated, draft.donated)
    return draft


def rooms(graph: Graph, of_all: Graph) -> tuple[Spec | None, ...]:
    """Return the specs of the results that have spare capacity in the graph `of_all` lengths; empty if none has."""
    pairs = zip(graph.outputs, of_all.outputs, strict=True)
    found = [(graph.specs[own], of_all.specs[theirs]) for own, theirs in pairs]
    return tuple(room if room is not own else None for own, room in found) if any(a is not b for a, b in found) else ()


def placed_in_rooms(outputs: Sequence[Value], rooms: Sequence[Spec | None]) -> tuple[list[Value], Iterator[None]]:
    """Return the values that get the results, and an iterator that makes `outputs` parts of the rooms.

    A sequence that is appended to is part of its own room.
    """
    results = [
        value if room is None else Value(room, value.device, None, -1)
        for value, room in zip(outputs, rooms, strict=True)
    ]
    pairs = [pair for pair in zip(outputs, results, strict=True) if pair[0] is not pair[1]]
    pairs = [(value, room) for value, room in pairs if value.__class__ is not Grown]
    parts, own = [value for value, _ in pairs], [room for _, room in pairs]
    return results, chain(
        map(setattr, parts, repeat("room"), own), map(setattr, parts, repeat("__class__"), repeat(Padded))
    )


def shared(graph: Graph) -> tuple[Graph, int] | None:
    """Return the graph that all lengths of a `graph` share, and its length; `None` if its sizes do not grow."""
    if graph.effects or any(calls_python(operation.plan) for operation in graph.operations):
        return None
    opened = inlined(graph).graph
    try:
        rest, found = outline_of(opened)
    except (Fixed, TypeError):  # an argument that has no hash
        return None
    sizes = np.array(found, np.int64)
    form = _forms.get(rest)
    if form is None:
        form = _forms[rest] = _Form(sizes)
        least_recently_used.trim(_forms, config.compilation_cache_size())
        form.used = least_recently_used.now()
        return None
    form.used = least_recently_used.now()
    family = form.family_of(sizes, any(operation.plan.op == CUT for operation in opened.operations))
    if family is None or family[1] < _SHORTEST:
        return None
    made = family[0].graph(opened, family[1])
    if made is None:
        return None
    _shared.value += 1
    return made, family[1]
