"""The engine's state per device: the open tape, random state, and how tensors are made."""

import functools
import operator
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import repeat, starmap
from typing import NoReturn

import jax
import torch

from ..atomic import lock
from ..caching.interning import look_through, table_of_plans
from ..compat.abi import device_word
from ..compat.names import torch as private
from ..compat.names.torch import address_of
from ..compat.patches import garbage_callback
from ..compile.disk import disk_cache
from ..ir.call_plan import Plan
from ..ir.graph import Graph
from ..ir.sharding import Sharding
from ..ir.tape import Tape, Value
from ..ir.value_spec import Spec, sharded, spec_of
from ..lowering.machinery.jax_sharding import lies_on, of_array
from ..metrics.user_lines import Line
from ..processes import identity, spmd_mode
from ..runtime import buffers, platform
from ..runtime import device_assignment as targets
from ..runtime.device_assignment import Target
from .nonzero_ordinals import tensor_on_ordinal
from .random_state import Generator

# Backward runs in PyTorch's own threads and loaders upload from theirs: a thread that uses a tape holds it. Reentrant,
# because collecting garbage may run anything.
LOCK = lock()

# Releases it in a handler of exceptions around its `acquire`, if it was acquired at all: waiting may be interrupted. In
# one call of C's, because the handler may be interrupted, too.
let_go: Callable[[], object] = map(
    operator.call,
    map((bool, LOCK.release).__getitem__, starmap(LOCK._is_owned, repeat(()))),  # type: ignore[attr-defined]
).__next__


class Mark:
    """The sharding annotation of one storage (`sharding_annotations`)."""

    __slots__ = ("seen", "settled", "sharding", "storage")

    def __init__(self, storage: object, sharding: Sharding | None, marks: dict[int, "Mark"]) -> None:
        place = address_of(storage)
        self.sharding = sharding
        self.storage = weakref.ref(storage, lambda _: marks.pop(place, None))
        self.settled: tuple[int, int] | None = None  # the tape, by when it began, and the slot that is divided so
        self.seen: jax.sharding.Sharding | None = None  # of a buffer that was found to be divided so


class Device:
    """One `xla` ordinal."""

    __slots__ = (
        "__weakref__",
        "generator",
        "index",
        "last_schedule",
        "marks",
        "new_tensor",
        "place",
        "places",
        "spread",
        "tape",
        "torch_device",
    )

    def __init__(self, index: int, place: int | None = None) -> None:
        self.index = index
        self.place = index if place is None else place  # among the devices of this process
        self.spread: Target | None = None  # the devices behind this ordinal, if there are several
        self.torch_device = torch.device("xla", index)
        # Results of `placed`: the spec of a value, by its spec without a sharding and JAX's sharding of its buffer.
        self.places: dict[tuple[Spec, jax.sharding.Sharding], Spec] = {}
        self.marks: dict[int, Mark] = {}  # of the storages that the user marked, by address
        self.tape = Tape()
        self.generator = Generator()
        self.generator.seed(_seed_of(self.place))
        self.last_schedule: object = None  # the `Schedule` that ran last: a class of the step room, above
        self.new_tensor: Callable[[tuple[int, ...], torch.dtype], torch.Tensor] = (
            private.create_empty_tensor if index == 0 else functools.partial(tensor_on_ordinal, index)
        )

    @property
    def target(self) -> Target:
        """Where its programs run; starts the client."""
        target = self.spread or targets.of_device(platform.local_devices()[self.place])
        disk_cache.foresee(target)
        return target

    def new_tape(self, expected: Sequence[object] | None = None, expected_lines: dict[int, Line] | None = None) -> Tape:
        """Return an empty tape for what is recorded next."""
        return Tape(expected, expected_lines, None if self.spread is None else self.placed)

    def spread_over(self, devices: tuple[object, ...]) -> None:
        """Put these devices behind this ordinal, in this order. Nothing may be recorded on it."""
        self.spread = targets.of_mesh(devices) if len(devices) > 1 else None
        self.places = {}
        self.tape = self.new_tape()

    def placed(self, value: Value) -> Spec:
        """Return the spec of a computed value, with its sharding."""
        spec, buffer = value.spec, value.buffer
        found = self.places.get((spec, buffer.sharding))
        if found is None:
            target = self.target
            if not lies_on(buffer.sharding, target):  # computed before the ordinal had these devices
                value.buffer = buffer = buffers.place(buffer, target.everywhere, spec.size)
            found = self.places[spec, buffer.sharding] = sharded(spec, of_array(buffer, target))
        return found

    def target_of(self, graph: Graph) -> Target:
        """Return where `graph` runs: here alone, or in all processes if it is collective."""
        return targets.of_replicas(platform.counterparts(self.place)) if graph.is_collective else self.target

    def __repr__(self) -> str:
        return f"<xla:{self.index}>"


# The devices something was done on so far, by place.
# The devices that were used so far, by their place in this process.
existing: list[Device] = []
_seed = 0  # of the process: ordinals that come into use later begin with it too


def _seed_of(index: int) -> int:
    # Ordinals draw from sequences of their own; ordinal 0 from the seed itself.
    return _seed + index * 0x9E3779B97F4A7C15


def seed_all(seed: int) -> None:
    """Seed every ordinal, including unused ones, without bringing any into use."""
    global _seed
    with LOCK:
        _seed = seed
        for device in existing:
            device.generator.seed(_seed_of(device.place))


# The ordinal of the first device of this process.
_first = 0


class _Current(threading.local):
    """The ordinal that a bare "xla" means in a thread, also as C++ takes it."""

    index = 0
    word = device_word(0)


current = _Current()


def number() -> None:
    """Number the devices of this process by its place among others; those that are in use keep their numbers."""
    global _first
    if not existing:
        _first = identity.place().local_index if identity.is_numbered() else 0
        _Current.index, _Current.word = _first, device_word(_first)


number()
identity.after_taking.append(number)


class _TapeOfAFork:
    """The tape of a device in a fork of a process that used it: recording raises with the reason."""

    def __init__(self) -> None:
        self.started = 0  # a value that was computed before can still be read where the memory is the host's

    def __getattr__(self, name: str) -> NoReturn:
        platform.refuse_fork()
        raise AttributeError(name)


def _after_fork() -> None:
    LOCK._at_fork_reinit()  # type: ignore[attr-defined]  # the thread that held it is not in this process
    if platform.is_forked():
        for device in existing:
            device.tape = _TapeOfAFork()  # type: ignore[assignment]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# Called once, when the first ordinal is used; when the first above 0 is.
before_first_use: list[Callable[[], None]] = [garbage_callback.keep_interrupts]
before_second_ordinal: list[Callable[[], None]] = []


def device_count() -> int:
    """Return how many ordinals this process addresses."""
    return 1 if spmd_mode.is_on() else len(platform.local_devices())


def ordinals() -> range:
    """Return the ordinals that this process addresses. Starts the client."""
    return range(_first, _first + device_count())


def numbered_count() -> int:
    """Return how many ordinals programs count: on a machine of numbered processes, one for each of those."""
    if not identity.is_numbered():
        return device_count()
    return max(identity.local_process_count(), _first + 1)


def is_elsewhere(index: int) -> bool:
    """Return whether an ordinal is the device of another process on this machine."""
    return identity.is_numbered() and index != _first and 0 <= index < numbered_count()


def device_at(index: int) -> Device:
    """Return the device with this ordinal."""
    place = index - _first
    if not 0 <= place < len(existing):
        if not existing:
            platform.prepare_host()
        # The first one always exists: tensors can be described on it before the client starts.
        if place < 0 or (place > 0 and place >= device_count()):
            raise RuntimeError(_absence_of(index))
        with LOCK:
            _make_devices(place)
    return existing[place]


def _absence_of(index: int) -> str:
    """Return why there is no device with this ordinal."""
    if spmd_mode.is_on():
        return f"xla:{index} does not exist: under SPMD xla:0 stands for all devices."
    place = identity.place()
    if is_elsewhere(index):
        return (
            f"xla:{index} is the device of another process: this is process {place.local_index} of {place.local_count} "
            f"on this machine, and its device is xla:{_first}. Write 'xla', which means that, or "
            f"torch.device('xla', int(os.environ['LOCAL_RANK'])). Other processes' values come by torch.distributed."
        )
    if place.count > 1:
        why = "LOCAL_RANK" if identity.is_numbered() else "the processes of torch_xla.launch each call their device so"
        return f"xla:{index} does not exist: this process has one device, xla:{_first} ({why})."
    return (
        f"xla:{index} does not exist: this process has {device_count()} device(s), xla:0 to xla:{device_count() - 1}. "
        f"On the CPU, CPU_NUM_DEVICES sets how many there are."
    )


def device_behind(home: object) -> Device:
    """Return the device of this process that is this one of JAX; the current device for one of another process."""
    local = platform.local_devices()
    return device_at(_first + local.index(home) if home in local else current_index())


def _make_devices(place: int) -> None:
    while before_first_use:
        before_first_use.pop()()
    while _first + place > 0 and before_second_ordinal:
        before_second_ordinal.pop()()
    while len(existing) <= place:
        device = Device(_first + len(existing), len(existing))
        if spmd_mode.is_on():
            device.spread_over(platform.all_devices())
        existing.append(device)


def take_name() -> None:
    """Give our devices the name "xla" in PyTorch, where they take it with their first use."""
    if private.backend_name() != "xla":
        device_at(_first)


def existing_devices() -> list[Device]:
    """Return the devices something was done on so far."""
    return existing


def current_index() -> int:
    """Return the ordinal a bare "xla" means in this thread."""
    return current.index


def set_current_index(index: int) -> None:
    """Make `index` the ordinal that a bare "xla" means in this thread; a negative one changes nothing, as on CUDA."""
    if index < 0:
        return
    device_at(index)
    word = device_word(index)
    current.index, current.word = index, word


def device_for(device: torch.device | str | int | None) -> Device:
    """Return the device that a factory's `device` argument names."""
    if device is None:
        return device_at(current_index())
    index = device.index if isinstance(device, torch.device) else torch.device(device).index
    return device_at(current_index() if index is None else index)


def uninitialised(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: Device) -> Value:
    """Return a value that has not been written yet."""
    return Value(spec_of(size, stride, dtype), device, None, -1)


def _forget_places() -> int:
    for device in existing:
        device.places = {}
    return 0


look_through(_forget_places, 0)  # they hold specs, which are looked through after them


_EMPTY_PLANS: dict[Spec, Plan] = {}
table_of_plans(_EMPTY_PLANS)


def empty_plan(value: Value) -> Plan:
    """Return the plan that gives uninitialised memory a value when it is read after all: zeros."""
    plan = _EMPTY_PLANS.get(value.spec)
    if plan is None:
        size, dtype = list(value.spec.size), value.spec.dtype
        plan = _EMPTY_PLANS[value.spec] = Plan(
            torch.ops.aten.zeros.default, ((size,), {"dtype": dtype}), (), (), (value.spec,)
        )
    return plan
