"""Watch one call of a function: note what it read, wrote and returned, in terms that a replay can use."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from operator import is_
from typing import Any

import numpy as np
import torch

from ...atomic import uncollected
from ...compat.names.torch import pytree, version_of
from ...compat.patches.autograd_observers import hooks_of_nodes
from ...ir.call_plan import Plan
from ...ir.tape import Tape, Value
from ...ir.value_spec import Spec
from ...metrics import user_lines
from ...step.liveness import held
from ...step.step import Schedule
from ...step.sync import sync_device
from ...tensor import sharding_annotations
from ...tensor.device import LOCK, Device
from ...tensor.host_known_values import Asked, onlookers
from ...tensor.random_state import Generator
from ...tensor.storage import value_of
from .accessed_names import Reads
from .argument_spec import Call, own_state
from .call_record import GRADIENT, Facts, OuterMemory, VersionChange
from .call_tracer import CallWatch
from .global_state import changed, circumstances
from .guard_builder import TooMuch, not_found, reach
from .guards import Change, Reached
from .output_recipe import Returned, Unreturnable, again
from .scalar_tracing import Changing, HostTrace

# A constant larger than this is not compared from call to call.
MOST_CONSTANT_BYTES = 1 << 20


def record(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    call: Call,
    device: Device,
    known: Reads | None,
    suspects: Sequence[Change],
    changing: Changing,
    end: Callable[[], None],
) -> tuple[Any, Facts]:
    """Call the function on an empty tape, end the step by `end`, and return a record of the call.

    `known` is what earlier calls have read: the record is complete if this call reads nothing else. `changing` holds
    the host values that were found to change, and is extended.
    """
    if device.tape.code:
        sync_device(device)  # what other threads have left there for themselves
    # So the tape notes of each operation who records it, as it does where it has left the path of the last one.
    tape = device.tape
    tape.expected = None
    facts = Facts()
    looks_at = known or Reads()
    roots = [("the function", function), *((f"argument {i}", o) for i, o in enumerate(call.objects))]
    try:
        facts.reached = reach(roots, looks_at)
    except TooMuch as error:
        facts.reasons.append(str(error))
        return function(*args, **kwargs), facts
    around, hooks = circumstances(device), hooks_of_nodes()
    given = [_copy(each) for each in call.containers]
    before = _Before(call, facts, device)
    changing = Changing() if looks_at.compiled else changing  # what `torch.compile` has made looks at modes itself
    result, watch = _call(function, args, kwargs, facts, suspects, changing, looks_at, call, device)
    _note_effects(facts, facts.reached, watch, known)
    if not all(map(_holds, call.containers, given)):
        facts.reasons.append("it changes a list or dictionary that it was given")
    switched = changed(around, circumstances(device))
    if switched:
        facts.reasons.append(f"it changes {switched} and does not change it back")
    if hooks != hooks_of_nodes():
        facts.reasons.append("a hook was registered on an autograd node during the call")
    facts.only_learned = not facts.reasons and (known is None or not known.covers(facts.reads))
    if facts.reasons or facts.only_learned:
        return result, facts
    sharding_annotations.keep(device)  # the sync would; what is written is what it leaves
    spent = {id(each): each.detach() for each in pytree.tree_leaves(result) if _is_spent(each)}
    detached = _with(spent, result)
    code = before.compare_with(tape, detached, {id(each) for each in spent.values()}, watch)
    before.buffers.clear()  # buffers that nothing else holds may be donated
    facts.reached.seen = {}
    recorded = bool(device.tape.code)
    end()
    _learn_schedule(facts, device.last_schedule if recorded else None, code)
    if not facts.reasons:
        result = _with({each: again(tensor) for each, tensor in spent.items()}, result)
    return result, facts


def _note_effects(facts: Facts, reached: Reached, watch: CallWatch, known: Reads | None) -> None:
    """Take note of the changes that the call made, and of reads and calls that earlier calls did not make."""
    if watch.unseen:
        facts.reasons.append(watch.unseen)
    facts.differences = reached.differences()
    facts.reasons += [_described(each, watch) for each in facts.differences]
    if known is not None:
        facts.reasons += [*watch.unknown, *reached.unknown, *not_found(reached, facts.reads)]
        if "__globals__" in facts.reads.names:
            facts.reasons.append("it looks at the `__globals__` of a function, whose names cannot be known")


def _learn_schedule(facts: Facts, schedule: object, code: tuple[object, ...]) -> None:
    """Take note of the schedule of the call, whose code is this."""
    if isinstance(schedule, Schedule) and schedule.program is not None:
        facts.schedule = schedule
        facts.code = schedule.code
        if schedule.code != code:
            facts.reasons.append("another thread has recorded or run something beside it")
    elif not facts.reasons:
        facts.reasons.append("it computes nothing on the device")


@uncollected
def _call(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    facts: Facts,
    suspects: Sequence[Change],
    changing: Changing,
    looks_at: Reads,
    call: Call,
    device: Device,
) -> tuple[Any, CallWatch]:
    """Call the function under a watch, and note what it computes on the host if something changes there."""
    reached = facts.reached
    assert reached is not None
    changing.learn_before(reached)
    host = HostTrace(changing, looks_at, reached, device)
    is_needed = host.is_needed()
    watch = CallWatch([each for each in suspects if not host.knows(each)])
    arguments = {id(value_of(tensor)): index for index, tensor in enumerate(call.tensors)}

    def note_read(value: Value, asked: Asked) -> None:
        if threading.get_ident() == thread and id(value) in arguments:
            facts.checked.setdefault(arguments[id(value)], set()).add(asked)

    thread = threading.get_ident()
    try:
        onlookers.append(note_read)
        with watch, host if is_needed else nullcontext():
            result = function(*args, **kwargs)
    except BaseException:
        # The error may come from a number that replaced a float.
        changing.is_shown = False
        host.restore()
        host.end()
        raise
    finally:
        try:
            watch.end()
        finally:
            if note_read in onlookers:
                onlookers.remove(note_read)
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


def _holds(container: object, copy: list[Any]) -> bool:
    now = _copy(container)
    if isinstance(container, dict):
        now, copy = [part for pair in now for part in pair], [part for pair in copy for part in pair]
    return len(now) == len(copy) and all(map(is_, now, copy))


def _described(difference: Change, watch: CallWatch) -> str:
    line = watch.line_of(difference.path)
    where = f" ({user_lines.text(line)})" if line is not None else ""
    return f"it changes {difference}{where}"


def _with(others: dict[int, torch.Tensor], result: object) -> object:
    """Return the result with tensors replaced, by `id`, with those in `others`."""
    return pytree.tree_map(lambda each: others.get(id(each), each), result) if others else result


def _is_spent(result: object) -> bool:
    """Return whether this is a tensor whose graph backward has used up."""
    return isinstance(result, torch.Tensor) and result.grad_fn is not None and _is_used(result.grad_fn)


def _is_used(node: Any) -> bool:
    """Return whether backward has freed what the graph behind a node had saved."""
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
    """The state before the call. It holds buffers, never values: references to values decide what is donated."""

    def __init__(self, call: Call, facts: Facts, device: Device) -> None:
        self.facts = facts
        self.device = device
        reached = facts.reached
        assert reached is not None
        self._by_storage: dict[int, int] = {}
        self._storages: list[object] = []
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
        steps = [VersionChange(each, argument=index) for index, each in enumerate(call.tensors)]
        steps += [VersionChange(each) for each in reached.tensors]
        steps += [VersionChange(each, leaf=index) for index, each in enumerate(self._before) if each is not None]
        self._versions = [(step, version_of(step.tensor)) for step in steps if not step.tensor.is_inference()]
        self._given = set(map(id, call.containers))
        self._arguments = [(tensor, own_state(tensor)) for tensor in call.tensors]
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

    def compare_with(self, tape: Tape, result: object, spent: set[int], watch: CallWatch) -> tuple[object, ...]:
        """Return `compare`, if the `tape` that was there at first holds the call and nothing else; the code of it."""
        with LOCK:  # no other thread runs the tape meanwhile
            self.compare(result, spent, watch)
            if self.device.tape is not tape or any([thread != threading.get_ident() for _, thread in tape.turns]):
                self.facts.reasons.append(
                    "what it recorded was run in the middle of it, or another thread recorded beside it"
                )
            return tuple(tape.code)

    def compare(self, result: object, spent: set[int], watch: CallWatch) -> None:
        """Fill in the facts; whatever is not understood becomes a reason. Of the result `spent` was differentiated."""
        facts, tape = self.facts, self.device.tape
        live = held(tape.values)
        if any(place.tensor.device.index != self.device.index for place in facts.places):
            facts.reasons.append("it sees tensors of several devices")
            return
        self._states_of_arguments()
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

    def _states_of_arguments(self) -> None:
        """Note changes that a replay leaves out: it gives arguments elements alone. A guard looks at other tensors."""
        for index, (tensor, before) in enumerate(self._arguments):
            after = own_state(tensor)
            self.facts.reasons += [
                f"it changes the {name} of argument {index}" for name in before if before[name] != after[name]
            ]

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
                    f"it uploads a large tensor ({user_lines.text(watch.uploads[0])}): do so before the call"
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

    def _results(self, tape: Tape, result: object, spent: set[int]) -> set[int]:
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
    """Return whether a gradient is described by its memory alone."""
    return (
        type(gradient) is torch.Tensor
        and not gradient.requires_grad
        and not gradient.__dict__
        and gradient.dtype is value_of(gradient).spec.dtype
        and not (gradient.is_conj() or gradient.is_neg())
    )


def _slot_of(storage: object, tape: Tape) -> int | None:
    value = getattr(storage, "value", None)
    return value.slot if value is not None and value.tape is tape else None


def inputs_of(code: Sequence[Any]) -> Iterable[tuple[int, Spec]]:
    """Yield the slots through which values enter a tape with this code, and their specs."""
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
    """Return the slots that operations fill, each with the operation's position."""
    found: dict[int, int] = {}
    slot = position = 0
    code = tape.code
    while position < len(code):
        entry = code[position]
        if isinstance(entry, Spec):
            slot += 1
            position += 1
            continue
        assert isinstance(entry, Plan)
        for _ in entry.outputs:
            found[slot] = position
            slot += 1
        position += 1 + len(entry.operands)
    return found


def _line_of(tape: Tape, position: int) -> str:
    line = tape.all_lines(tape.code).get(position)
    return f" ({user_lines.text(line)})" if line is not None else ""
