"""Pack the small tensors of a replay's state into a few arrays, so that a call passes few arguments.

When the buffer of a packed value is read, the whole pack is split, and its values become ordinary ones again.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import chain, count, repeat
from operator import attrgetter, is_
from typing import Any

import torch

from ... import metrics
from ...atomic import run_through, stores
from ...compile import program_cache
from ...compile.program import Program
from ...ir.tape import Value, set_buffer
from ...ir.value_spec import Spec
from ...metrics import events
from ...metrics.events import Cause
from ...step import executor
from ...step.liveness import are_owned, may_be_taken
from ...step.step import Step
from ...tensor.device import LOCK, Device
from .io_binding import BoundProgram, Packs, flat_spec, pack_graph, packed, unpack_graph

# A replay is packed after this many runs. Compiling the packed program costs what some thousands of runs save.
_AFTER = 1_000
# A pack that was read before it ran so often was not worth it: the next one is made twice as late.
_WORTH = 16
# Packing must save this many arrays per call, inputs and outputs, to be worth a compilation.
_SPARES = 100
# The device takes as long to move so many bytes as the host to pass an array, about 2 µs.
_HIDES_AN_ARRAY = 32 << 10
# Values of this size in bytes or more are not packed: copying them costs more than passing an array.
_SMALL = 64 << 10

_packed = metrics.counter("PackedStep")
_unpacked = metrics.counter("Unpacking")

_slot = vars(Value)["buffer"]  # also that of a packed value
_value = attrgetter("value")


class Pack:
    """One array of many values. In the storages of a replay it replaces the storages of these values."""

    __slots__ = ("_parts", "_taken_apart", "value")

    def __init__(self, spec: Spec, device: Device, taken_apart: Program) -> None:
        self.value = Value(spec, device, None, -1)  # has its buffer when the program that makes it was started
        self._taken_apart = taken_apart
        self._parts: list[object] | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether none of its values has been read."""
        return self._parts is None

    def part(self, index: int) -> object:
        """Return the buffer of one of the values."""
        if self._parts is None:
            graph = self._taken_apart.graph
            parts = [Value(graph.specs[slot], self.value.device, None, -1) for slot in graph.outputs]
            executor.run(Step(self._taken_apart, [self.value], parts, cause=Cause.READ))
            self._parts = [part.buffer for part in parts]
            self.value.buffer = None
            _unpacked.value += 1
        return self._parts[index]

    def forget(self, index: int) -> None:
        """Leave the buffer of one of the values to that value."""
        assert self._parts is not None
        self._parts[index] = None


class Packed(Value):
    """A value that may be in a pack until its buffer is read; meanwhile it holds the pack, and its position in it.

    Until it is packed it is an ordinary value. A change of class runs audit hooks, and an interrupt may come there, so
    nothing may depend on the class.
    """

    __slots__ = ()

    @property
    def buffer(self) -> Any:
        """The array of this value alone, which takes the pack apart for it."""
        with LOCK:
            held = _slot.__get__(self)
            if held.__class__ is tuple:  # no other thread was faster
                pack, index = held
                part = pack.part(index)
                self.__class__ = Value  # type: ignore[assignment]
                # By stores alone from here on (`atomic`); and the pack lets go of it last.
                self.buffer = part
                pack.forget(index)
        return _slot.__get__(self)

    @buffer.setter
    def buffer(self, buffer: Any) -> None:
        _slot.__set__(self, buffer)


def _laid(values: Sequence[Value], pack: Pack) -> Iterator[Any]:
    """Return an iterator that puts the values into a pack."""
    run_through(stores(values, "__class__", repeat(Packed)))
    return map(set_buffer, values, zip(repeat(pack), count()))


class _Group:
    """Values of one dtype that are packed together, and the storages that hold them."""

    def __init__(self, places: Sequence[int], storages: Sequence[Any], specs: Sequence[Spec], device: Device) -> None:
        self.pack: Pack | None = None
        self.places = places
        self.storages = storages
        self._specs = specs
        self._device = device
        self._members: list[Value] = []
        self._spec = flat_spec(specs)
        self._put_together = program_cache.program_of(pack_graph(specs), (), device.target)
        self._taken_apart = program_cache.program_of(unpack_graph(specs), (), device.target)

    def prepare(self) -> None:
        """Compile what reading a value takes, so that reads never compile."""
        executor.prepare(self._put_together, (), Cause.SYNC, lambda: ())
        executor.prepare(self._taken_apart, (), Cause.SYNC, lambda: ())

    def is_whole(self) -> bool:
        """Return whether the storages still hold these values, nothing else does, and none has been read."""
        return (
            self.pack is not None
            and self.pack.is_whole
            and all(map(is_, map(_value, self.storages), self._members))
            and are_owned(self._members)
        )

    def fits(self) -> bool:
        """Return whether the storages hold values of the forms that are expected."""
        return all(map(is_, [storage.value.spec for storage in self.storages], self._specs))

    def gather(self) -> bool:
        """Pack the present values of the storages. Return False if anything else holds one of them."""
        self.forget()
        values: list[Value] = [storage.value for storage in self.storages]
        if any(value.buffer is None for value in values) or not self.fits() or not may_be_taken(values):
            return False
        pack = self._new_pack()
        executor.run(Step(self._put_together, values, [pack.value], after=self._held(pack, values)))
        return True

    def updated(self) -> Value:
        """Return the value whose buffer is that of the pack: a program writes the values that are next into it."""
        assert self.pack is not None
        return self.pack.value

    def replaced(self) -> tuple[Value, Iterator[Any]]:
        """Return the value that gets the buffer of new values, and what makes them what the storages hold."""
        if self.is_whole():
            return self.updated(), iter(())
        values = [Value(spec, self._device, None, -1) for spec in self._specs]
        pack = self._new_pack()
        return pack.value, chain(self._held(pack, values), stores(self.storages, "value", values))

    def note_run(self) -> None:
        """Note that a program has written into the pack."""
        if self.pack is not None and not self.pack.is_whole:
            # Something that ran meanwhile, such as a finalizer, has read a value that it held before.
            pack = self._new_pack()
            pack.value.buffer = self.pack.value.buffer
            run_through(self._held(pack, self._members))

    def _new_pack(self) -> Pack:
        return Pack(self._spec, self._device, self._taken_apart)

    def _held(self, pack: Pack, values: list[Value]) -> chain[None]:
        return chain(_laid(values, pack), map(setattr, (self, self), ("pack", "_members"), (pack, values)))

    def forget(self) -> None:
        """Leave the values to their holders."""
        self.pack = None
        self._members = []


class Packing:
    """Decide which values of a replay are packed, and when: a pack that is read often is rebuilt less and less."""

    def __init__(
        self,
        plain: BoundProgram,
        storages: Sequence[Any],
        first: int,
        excluded: Container[int],
        at_once: bool = False,
    ) -> None:
        """Pack the `storages` of the places from `first` on; the `excluded` places stay as they are.

        An earlier replay of the same program has earned the packing that is begun `at_once`.
        """
        self._plain = plain
        self._storages = storages
        self._first = first
        self._excluded = excluded
        self._pause = _AFTER
        self._next = 0 if at_once else _AFTER
        self._since = -1  # the run that was the first with the packs there are; -1: there are none
        self._kept: list[_Group] = []
        self._renewed: list[_Group] = []
        self._layout: BoundProgram | None = None

    def has_paid(self, runs: int) -> bool:
        """Return whether packing was worth it, after so many runs."""
        return self._pause == 0 or 0 <= self._since <= runs - _WORTH

    def prepare(self, runs: int, device: Device, compile_it: Callable[[BoundProgram], None]) -> None:
        """Compile what packing takes, if it is time for it: without the lock that recording needs."""
        if self._layout is None and runs >= self._next and not events.guarded:
            self._next = runs + self._pause  # lest one that fails is tried at every run
            self._layout = self._packed(device, compile_it)
            if self._layout is not None:
                self._next = runs

    def layout(self, runs: int) -> BoundProgram:
        """Return the bound program for a run, after `runs` earlier ones."""
        if self._since >= 0:
            assert self._layout is not None
            if all([group.is_whole() for group in self._kept]) and self._fits():
                return self._layout
            self._end(runs)
        if runs >= self._next:
            self._next = runs + self._pause
            if self._layout is not None and self._fits() and all([group.gather() for group in self._kept]):
                self._since = runs
                return self._layout
            self._forget()
        return self._plain

    def rebind(self, runs: int) -> None:
        """Note that some of the places have other memory: what is packed is left to its holders."""
        if self._layout is None:
            return
        if self._since >= 0:
            self._end(runs)
        for group in (*self._kept, *self._renewed):
            group.storages = [self._storages[place - self._first] for place in group.places]

    def packs(self) -> list[Pack | None]:
        """Return the entries of the packs in the storages."""
        return [group.pack for group in self._kept]

    def results(self, layout: BoundProgram) -> tuple[dict[int, Value], list[Iterator[Any]]]:
        """Return the values of those outputs of a run that are packs, and what is done when they have their buffers."""
        values: dict[int, Value] = {}
        placed: list[Iterator[Any]] = []
        if layout is not self._plain:
            for output, group in zip(layout.updated, self._kept, strict=True):
                values[output] = group.updated()
            for output, group in zip(layout.replaced, self._renewed, strict=True):
                values[output], after = group.replaced()
                placed.append(after)
        return values, placed

    def note_run(self, layout: BoundProgram) -> None:
        """Note that a run has ended."""
        if layout is not self._plain:
            for group in (*self._kept, *self._renewed):
                group.note_run()
            _packed.value += 1

    def _fits(self) -> bool:
        return all([group.is_whole() or group.fits() for group in self._renewed])

    def _end(self, runs: int) -> None:
        self._pause = 0 if runs - self._since >= _WORTH else 2 * max(self._pause, _AFTER)
        self._next = runs + self._pause
        self._forget()

    def _forget(self) -> None:
        self._since = -1
        for group in (*self._kept, *self._renewed):
            group.forget()

    def _packed(self, device: Device, compile_it: Callable[[BoundProgram], None]) -> BoundProgram | None:
        plain = self._plain
        kept: dict[torch.dtype, list[tuple[int, Spec, int]]] = defaultdict(list)
        renewed: dict[torch.dtype, list[tuple[int, Spec, int]]] = defaultdict(list)
        for _, index in plain.in_place:
            kept[plain.specs[index].dtype].append((index, plain.specs[index], plain.inputs[index]))
        uses = Counter([*(output for output, _, _ in plain.elsewhere), *plain.new.values()])
        for output, place, spec in plain.elsewhere:
            # An integer may have a copy on the host, which belongs to its value.
            if uses[output] == 1 and spec.dtype.is_floating_point:
                renewed[spec.dtype].append((output, spec, place))
        chosen = [[self._chosen(each) for each in groups.values()] for groups in (kept, renewed)]
        inside, outside = ([group for group in groups if len(group) > 1] for groups in chosen)
        spared = 2 * sum(map(len, inside)) + sum(map(len, outside))
        moved = sum(
            spec.numel * spec.dtype.itemsize for groups in (inside, outside) for each in groups for _, spec, _ in each
        )
        # Where what is not packed takes the device long, its time hides the host's.
        is_small = plain.bytes - moved <= spared * _HIDES_AN_ARRAY
        program = plain.program
        # When a pack is taken apart is this process's own affair, and must not make programs of several others.
        is_alone = not device.spread and not program.graph.is_collective
        if spared < _SPARES or not is_small or program.is_in_layers or not device.target.is_host or not is_alone:
            self._next = sys.maxsize
            return None
        self._kept, self._renewed = ([self._group(each, device) for each in groups] for groups in (inside, outside))
        packs = Packs(*([[index for index, _, _ in each] for each in groups] for groups in (inside, outside)))
        layout = packed(plain, packs, self._first + len(self._storages), plain.program.target)
        # Compile before anything is packed: listeners to compilations may read any value.
        compile_it(layout)
        for group in (*self._kept, *self._renewed):
            group.prepare()
        return layout

    def _chosen(self, candidates: list[tuple[int, Spec, int]]) -> list[tuple[int, Spec, int]]:
        small = [
            (index, spec, place)
            for index, spec, place in candidates
            if 0 < spec.numel * spec.dtype.itemsize < _SMALL and place >= self._first and place not in self._excluded
        ]
        return sorted(small, key=lambda each: -each[1].numel)  # large ones first, so that they are aligned

    def _group(self, chosen: list[tuple[int, Spec, int]], device: Device) -> _Group:
        places = [place for _, _, place in chosen]
        storages = [self._storages[place - self._first] for place in places]
        return _Group(places, storages, [spec for _, spec, _ in chosen], device)
