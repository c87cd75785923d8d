"""One watched call of a function: what it read, wrote and returned, in terms that a replay can use."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import numpy as np
import torch

from ..graph.spec import Spec
from ..graph.tape import Tape
from ..metrics import lines
from ..private.torch import pytree, version_of
from ..record import marks
from ..record.device import Device
from ..record.generator import Generator
from ..record.ownership import held
from ..record.schedule import Schedule
from ..record.storage import value_of
from ..record.sync import sync_device
from ..uninterrupted import uncollected
from .circumstances import circumstances
from .host_part import Changing, HostPart, HostTrace
from .reach import Change, Reached
from .reads import Reads
from .results import Returned, Unreturnable, again
from .signature import Call
from .walk import TooMuch, not_found, reach
from .watch import CallWatch

# What a gradient is called in messages.
GRADIENT = "a gradient"

# A constant larger than this is not compared from call to call.
MOST_CONSTANT_BYTES = 1 << 20


@dataclass
class OuterMemory:
    """Memory that outlives the call: an argument, something the function sees, or a gradient."""

    tensor: torch.Tensor
    path: str
    argument: int = -1  # which of the argument tensors; -1: none
    leaf: int = -1  # whose gradient it is, where nothing else shows its memory; -1: nobody's


@dataclass
class VersionStep:
    """How far the call stepped a version counter: of an argument, of a leaf's gradient, or of another tensor."""

    tensor: torch.Tensor
    argument: int = -1
    leaf: int = -1
    count: int = 0


@dataclass
class Facts:
    """What one call did."""

    reasons: list[str] = field(default_factory=list)  # why it cannot be replayed
    differences: list[Change] = field(default_factory=list)
    places: list[OuterMemory] = field(default_factory=list)
    reached: Reached | None = None
    leaves: list[torch.Tensor] = field(default_factory=list)
    had_gradient: list[bool] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)  # what became of each leaf's: none, new, the same
    code: Sequence[Any] = ()
    numbers: list[Any] = field(default_factory=list)
    draws: int = 0
    sources: dict[int, Any] = field(default_factory=dict)  # input slot → a place, or the constant there
    sharing: list[tuple[int, ...]] = field(default_factory=list)  # places that held one value before the call
    sinks: dict[int, int] = field(default_factory=dict)  # place → slot
    returned: Returned | None = None
    new: dict[Any, int] = field(default_factory=dict)  # memory that only the result has → slot
    written: list[VersionStep] = field(default_factory=list)
    reads: Reads = field(default_factory=Reads)
    host: HostPart | None = None  # what it computed on the host
    only_learned: bool = False  # it looked at what was not known before the call: more is not known of it
    schedule: Schedule | None = None

    def release(self) -> None:
        """Lets go of the memory of the call; what another call is compared with stays."""
        self.places, self.leaves, self.written = [], [], []
        self.differences, self.reached = [], None
        if self.host is not None:
            self.host.release()


def record(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    call: Call,
    device: Device,
    known: Reads | None,
    suspects: Sequence[Change],
    changing: Changing,
    end: Callable[[], None],
) -> tuple[Any, Facts]:
    """Calls the function on an empty tape, ends the step by `end`, and tells what happened.

    `known` is what calls have looked at so far: this one is understood if it looks at nothing else. `changing` is what
    of the host they have found changed, and takes note of more.
    """
    if device.tape.code:
        sync_device(device)  # what other threads have left there for themselves
    facts = Facts()
    looks_at = known or Reads()
    roots = [("the function", function), *((f"argument {i}", o) for i, o in enumerate(call.objects))]
    try:
        facts.reached = reach(roots, looks_at)
    except TooMuch as error:
        facts.reasons.append(str(error))
        return function(*args, **kwargs), facts
    around = circumstances(device)
    given = [_copy(each) for each in call.containers]
    before = _Before(call, facts, device)
    changing = Changing() if looks_at.compiled else changing  # what `torch.compile` has made looks at modes itself
    result, watch = _call(function, args, kwargs, facts, suspects, changing, device)
    if not watch.complete:
        facts.reasons.append("a profiler or debugger was active")
    facts.differences = facts.reached.differences()
    facts.reasons += [_told(each, watch) for each in facts.differences]
    if not all(map(_holds, call.containers, given)):
        facts.reasons.append("it changes a list or dictionary that it was given")
    if known is not None:
        facts.reasons += [*watch.unknown, *facts.reached.unknown, *not_found(facts.reached, facts.reads)]
    if around != circumstances(device):
        facts.reasons.append("it switches autocast, gradients, the default dtype or the like, and leaves them so")
    facts.only_learned = not facts.reasons and (known is None or not known.covers(facts.reads))
    if facts.reasons or facts.only_learned:
        return result, facts
    marks.keep(device)  # the sync would; what is written is what it leaves
    spent = {id(each): each.detach() for each in pytree.tree_leaves(result) if _is_spent(each)}
    detached = _with(spent, result)
    before.compare(detached, {id(each) for each in spent.values()}, watch)
    before.buffers.clear()  # what is held by nobody else may be given away
    facts.reached.seen = {}
    recorded = bool(device.tape.code)
    end()
    if recorded and device.last_schedule.program is not None:
        facts.schedule = device.last_schedule
        facts.code = facts.schedule.code
    elif not facts.reasons:
        facts.reasons.append("it computes nothing on the device")
    if not facts.reasons:
        result = _with({each: again(tensor) for each, tensor in spent.items()}, result)
    return result, facts


@uncollected
def _call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    facts: Facts,
    suspects: Sequence[Change],
    changing: Changing,
    device: Device,
) -> tuple[Any, CallWatch]:
    """Calls the function under a watch, and notes what it computes on the host if something changes there."""
    reached = facts.reached
    assert reached is not None
    changing.learn_before(reached)
    host = HostTrace(changing, reached, device)
    is_needed = host.is_needed()
    watch = CallWatch([each for each in suspects if not host.knows(each)])
    try:
        with watch, host if is_needed else nullcontext():
            result = function(*args, **kwargs)
    finally:
        try:
            watch.end()
        finally:
            host.restore()
    facts.reads = watch.reads()
    facts.reasons += watch.reasons
    if is_needed:
        result = host.without_numbers(result)
        facts.reasons += host.reasons
        facts.host = host.part
    changing.learn_behind(reached)
    return result, watch


def _copy(container: Any) -> Any:
    return list(container.items()) if isinstance(container, dict) else list(container)


def _holds(container: Any, copy: list[Any]) -> bool:
    now = _copy(container)
    if isinstance(container, dict):
        now, copy = [part for pair in now for part in pair], [part for pair in copy for part in pair]
    return len(now) == len(copy) and all(map(is_, now, copy))


def _told(difference: Change, watch: CallWatch) -> str:
    line = watch.line_of(difference.path)
    where = f" ({lines.text(line)})" if line is not None else ""
    return f"it changes {difference}{where}"


def _with(others: dict[int, torch.Tensor], result: Any) -> Any:
    """The result, with these tensors in the place of those with such an id."""
    return pytree.tree_map(lambda each: others.get(id(each), each), result) if others else result


def _is_spent(result: Any) -> bool:
    """Whether this is a tensor whose graph backward has used up."""
    return isinstance(result, torch.Tensor) and result.grad_fn is not None and _is_used(result.grad_fn)


def _is_used(node: Any) -> bool:
    """Whether backward has freed what the graph behind a node had saved."""
    queue, seen = [node], {node}
    while queue and len(seen) < 1000:
        node = queue.pop()
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    if isinstance(getattr(node, name), torch.Tensor):
                        return False
                except RuntimeError:
                    return True
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                queue.append(following)
    return False


class _Before:
    """What there was before the call. It holds buffers, never values: who holds those decides what is given away."""

    def __init__(self, call: Call, facts: Facts, device: Device) -> None:
        self.facts = facts
        self.device = device
        reached = facts.reached
        assert reached is not None
        self._by_storage: dict[int, int] = {}
        self._storages: list[Any] = []
        for index, tensor in enumerate(call.tensors):
            self._add(OuterMemory(tensor, f"argument {index}", index))
        for tensor, path in zip(reached.tensors, reached.tensor_paths, strict=True):
            self._add(OuterMemory(tensor, path))
        facts.leaves = [tensor for tensor in reached.tensors if tensor.requires_grad and tensor.is_leaf]
        facts.had_gradient = [leaf.grad is not None for leaf in facts.leaves]
        self._before = [leaf.grad for leaf in facts.leaves]
        for index, gradient in enumerate(self._before):
            if gradient is not None:
                self._add_gradient(gradient, index)
        self.buffers = [getattr(getattr(storage, "value", None), "buffer", None) for storage in self._storages]
        steps = [VersionStep(each, argument=index) for index, each in enumerate(call.tensors)]
        steps += [VersionStep(each) for each in reached.tensors]
        steps += [VersionStep(each, leaf=index) for index, each in enumerate(self._before) if each is not None]
        self._versions = [(step, version_of(step.tensor)) for step in steps if not step.tensor.is_inference()]
        self._given = set(map(id, call.containers))
        self._draw_state = device.generator.state

    def _add_gradient(self, gradient: torch.Tensor, leaf: int) -> None:
        facts = self.facts
        if id(gradient.untyped_storage()) in self._by_storage:
            facts.reasons.append("a gradient shares its memory with something else that it sees")
        elif not _is_simple(gradient):
            facts.reasons.append(
                "a gradient has attributes, requires a gradient, or shows its memory in a way of its own"
            )
        else:
            self._add(OuterMemory(gradient, GRADIENT, leaf=leaf))

    def _add(self, place: OuterMemory) -> None:
        storage = place.tensor.untyped_storage()
        if id(storage) not in self._by_storage:
            self._by_storage[id(storage)] = len(self._storages)
            self._storages.append(storage)
            self.facts.places.append(place)

    def compare(self, result: Any, spent: set[int], watch: CallWatch) -> None:
        """Fills in the facts; whatever is not understood becomes a reason. Of the result `spent` was differentiated."""
        facts, tape = self.facts, self.device.tape
        live = held(tape.values)
        if any(place.tensor.device.index != self.device.index for place in facts.places):
            facts.reasons.append("it sees tensors of several devices")
            return
        self._numbers(tape)
        self._inputs(tape, watch)
        explained = self._outputs(tape)
        explained |= self._gradients(tape)
        explained |= self._results(tape, result, spent)
        produced = _produced(tape)
        for slot, is_live in enumerate(live):
            if is_live and slot in produced and slot not in explained:
                line = _line_of(tape, produced[slot])
                facts.reasons.append(f"something else keeps a result of it{line}: a list, an attribute or a cycle")
                break
        for step, version in self._versions:
            step.count = version_of(step.tensor) - version
            if step.count and (step.leaf < 0 or facts.gradients[step.leaf] == "the same"):
                facts.written.append(step)

    def _numbers(self, tape: Tape) -> None:
        facts = self.facts
        facts.numbers = list(tape.numbers)
        facts.draws = len(tape.draws)
        expected = Generator()
        expected.state = self._draw_state
        if [expected.draw() for _ in tape.draws] != tape.draws or expected.state != self.device.generator.state:
            facts.reasons.append("it seeds the device, or draws random numbers from a generator of its own")

    def _inputs(self, tape: Tape, watch: CallWatch) -> None:
        facts = self.facts
        places: dict[int, list[int]] = {}
        for index, buffer in enumerate(self.buffers):
            if buffer is not None:
                places.setdefault(id(buffer), []).append(index)
        known = {buffer: sharing[0] for buffer, sharing in places.items()}
        facts.sharing = [tuple(sharing) for sharing in places.values() if len(sharing) > 1]
        for slot, entry in inputs_of(tape.code):
            buffer = tape.values[slot].buffer
            place = known.get(id(buffer))
            if place is not None:
                facts.sources[slot] = place
            elif not watch.uploads:
                facts.reasons.append(
                    f"it reads a tensor of shape {list(entry.size)} that cannot be found from its arguments, closure "
                    f"and globals: pass it as an argument"
                )
            elif tape.values[slot].spec.numel * entry.dtype.itemsize > MOST_CONSTANT_BYTES:
                facts.reasons.append(
                    f"it uploads a large tensor ({lines.text(watch.uploads[0])}): do so before the call"
                )
            else:
                facts.sources[slot] = np.array(buffer, copy=True)

    def _outputs(self, tape: Tape) -> set[int]:
        facts = self.facts
        explained: set[int] = set()
        for index, storage in enumerate(self._storages):
            slot = _slot_of(storage, tape)
            if slot is None:
                if getattr(getattr(storage, "value", None), "buffer", None) is not self.buffers[index]:
                    facts.reasons.append(f"it uploads into {facts.places[index].path}: do so before the call")
            else:
                explained.add(slot)
                if isinstance(facts.sources.get(slot), np.ndarray):
                    facts.reasons.append(f"it uploads into {facts.places[index].path}: do so before the call")
                if not (isinstance(facts.sources.get(slot), int) and facts.sources[slot] == index):
                    facts.sinks[index] = slot
        return explained

    def _gradients(self, tape: Tape) -> set[int]:
        facts = self.facts
        explained: set[int] = set()
        for index, (leaf, before) in enumerate(zip(facts.leaves, self._before, strict=True)):
            gradient = leaf.grad
            facts.gradients.append("none" if gradient is None else "new" if gradient is not before else "the same")
            if gradient is None or gradient is before:
                continue
            slot = _slot_of(gradient.untyped_storage(), tape)
            if slot is None:
                facts.reasons.append("it leaves a gradient that it did not compute")
                continue
            explained.add(slot)
            self._add_gradient(gradient, index)
            facts.sinks[len(self._storages) - 1] = slot
        return explained

    def _results(self, tape: Tape, result: Any, spent: set[int]) -> set[int]:
        facts = self.facts
        explained: set[int] = set()
        try:
            assert facts.reached is not None
            facts.returned = Returned(result, self._owner_of, facts.reached.seen, self._given, spent)
        except Unreturnable as error:
            facts.reasons.append(str(error))
            return explained
        for place in facts.returned.owners:
            each = facts.places[place]
            if each.leaf >= 0 and facts.leaves[each.leaf].grad is not each.tensor:
                facts.reasons.append("it returns a gradient that it has replaced")
        for index, tensor in enumerate(facts.returned.storages.values()):
            slot = _slot_of(tensor.untyped_storage(), tape)
            if slot is None or slot in facts.sources:
                facts.reasons.append("it returns a tensor that it did not compute: a copy of something it was given")
            else:
                facts.new[index, "new"] = slot
                explained.add(slot)
        facts.returned.storages.clear()
        return explained

    def _owner_of(self, tensor: torch.Tensor) -> tuple[int, torch.Tensor] | None:
        place = self._by_storage.get(id(tensor.untyped_storage()))
        return None if place is None else (place, self.facts.places[place].tensor)


def _is_simple(gradient: torch.Tensor) -> bool:
    """Whether nothing but its memory tells a gradient from another one."""
    return (
        type(gradient) is torch.Tensor
        and not gradient.requires_grad
        and not gradient.__dict__
        and gradient.dtype is value_of(gradient).spec.dtype
        and not (gradient.is_conj() or gradient.is_neg())
    )


def _slot_of(storage: Any, tape: Tape) -> int | None:
    value = getattr(storage, "value", None)
    return value.slot if value is not None and value.tape is tape else None


def inputs_of(code: Sequence[Any]) -> Iterable[tuple[int, Spec]]:
    """The slots through which values enter a tape with this code, and their specs."""
    slot = position = 0
    while position < len(code):
        entry = code[position]
        if isinstance(entry, Spec):
            yield slot, entry
            slot += 1
            position += 1
        else:
            slot += len(entry.outputs)
            position += 1 + len(entry.operands)


def _produced(tape: Tape) -> dict[int, int]:
    """The slots that operations fill, each with the operation's position."""
    found: dict[int, int] = {}
    slot = position = 0
    code = tape.code
    while position < len(code):
        entry = code[position]
        if isinstance(entry, Spec):
            slot += 1
            position += 1
            continue
        for _ in entry.outputs:
            found[slot] = position
            slot += 1
        position += 1 + len(entry.operands)
    return found


def _line_of(tape: Tape, position: int) -> str:
    line = tape.all_lines(tape.code).get(position)
    return f" ({lines.text(line)})" if line is not None else ""


def same(one: Facts, other: Facts) -> str:
    """Why two calls are not the same, or nothing."""
    if one.code != other.code:
        return "it records another program from call to call"
    if one.host is not None or other.host is not None:
        difference = one.host.differs(other.host) if one.host is not None else "what it computes on the host is new"
        if difference:
            return difference
    computed = one.host.numbers if one.host is not None else ()
    for index, (old, new) in enumerate(zip(one.numbers, other.numbers, strict=True)):
        if index in computed:
            continue
        if type(old) is not type(new) or repr(old) != repr(new):
            return f"it computes with a Python number that was {old!r} and is {new!r}: keep it in a tensor"
    if one.draws != other.draws or one.sources.keys() != other.sources.keys():
        return "it records another program from call to call"
    for old, new in zip(one.sources.values(), other.sources.values(), strict=True):
        if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
            if old.tobytes() != new.tobytes():
                return "it uploads something else at every call: upload before the call, and pass it as an argument"
        elif type(old) is not type(new) or old != new:
            return "it reads other memory from call to call"
    if one.sharing != other.sharing:
        return "what it sees shares memory before the one call and not before the other"
    if one.had_gradient != other.had_gradient or one.gradients != other.gradients:
        return "gradients were there before the one call and not before the other"
    assert one.returned is not None and other.returned is not None
    if one.returned.structure != other.returned.structure or one.new.keys() != other.new.keys():
        return "it returns something else from call to call"
    return "" if one.sinks == other.sinks else "it writes to other memory from call to call"
