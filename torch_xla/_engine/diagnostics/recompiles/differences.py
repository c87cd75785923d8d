"""Compare a program with an earlier one: each difference in one line, with the user's line."""

import inspect
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from enum import Enum
from functools import cached_property
from typing import Any

from ...compat.names.torch import schema_if_any
from ...compile import program_cache
from ...compile.executable_key import Key
from ...compile.executable_key import differences as environments
from ...ir.call_plan import Number, Operand, Plan
from ...ir.graph import Graph, Operation
from ...ir.graph_text import name_of
from ...ir.value_spec import Spec
from ...ir.view.geometry import Geometry
from ...lowering.machinery import capacity_ops
from ...lowering.machinery.jax_sharding import CONSTRAINT
from ...lowering.machinery.registry import rule_of
from ...lowering.views.storage_access import READ, WRITE
from ...metrics.events import Cause, Compilation
from ...metrics.user_lines import Line

# Operations compared one by one from the first difference on.
_LOOKED_AT = 200

# Operators that users know by another name than PyTorch's inner one.
_AS_WRITTEN = {
    "_to_copy": "to",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "native_dropout": "dropout",
    capacity_ops.PAD: "pad",
    capacity_ops.APPEND: "cat",
    capacity_ops.ENLARGE: "cat",
    capacity_ops.TAKE: "a view",
    capacity_ops.CUT: "a result of a size that grows",
}

# Operators that make an optimizer's state in its first step.
_MAKERS = {"zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "empty", "empty_like"}


class Kind(Enum):
    """Kind of a difference, in the order in which one explains the next."""

    NEW = "a program unlike any before"
    DEVICE = "another device"
    SETTING = "another setting"
    CUT = "a part of a step, since a value was read before its end"
    INPUT = "an input of another shape or dtype"
    OPERATIONS = "other operations"
    ARGUMENT = "another argument"
    OPERANDS = "other operands"
    OUTPUTS = "other results are still held"
    DONATION = "other inputs can be given away"
    RESULTS = "results are divided among the devices otherwise"
    NUMBER = "another number"
    FORGOTTEN = "a program that is no longer in memory"
    AGAIN = "the same operations, compiled again"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference of a program from the one it is compared with."""

    kind: Kind
    text: str
    line: Line | None  # line of the user's program that differs
    held: tuple[Operation, ...] = ()  # whose results are held now and were not before

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Known:
    """A compiled program as kept for comparison. It holds neither executables nor values."""

    graph: Graph
    key: Key
    numbers: tuple[Any, ...]
    lines: tuple[Line | None, ...]
    names: tuple[str, ...]
    arguments: frozenset[int]  # which numbers were arguments of the program once it was compiled
    started_by: Line
    cause: Cause

    @classmethod
    def of(cls, compilation: Compilation) -> "Known":
        """Return what to keep of a compilation."""
        program = compilation.program
        return cls(
            program.graph,
            program.key,
            compilation.numbers,
            compilation.lines,
            compilation.names,
            frozenset(program.arguments),
            compilation.frames[0],
            compilation.cause,
        )

    @cached_property
    def plans(self) -> Counter[Plan]:
        """Return how often each plan is in the graph."""
        return Counter(operation.plan for operation in self.graph.operations)

    @cached_property
    def in_order(self) -> tuple[Hashable, ...]:
        """The operators, one after the other."""
        return tuple(operation.plan.op for operation in self.graph.operations)

    @cached_property
    def known_lines(self) -> frozenset[Line | None]:
        """The user's lines that it came from."""
        return frozenset(self.lines)

    @cached_property
    def operators(self) -> Counter[object]:
        """Return how often each operator is in the graph, whatever its operands."""
        return Counter(self.in_order)

    def line(self, index: int) -> Line | None:
        """Return the user's line of the operation with this index."""
        return self.lines[index] if 0 <= index < len(self.lines) else None

    def input_name(self, index: int) -> str:
        """Return what to call an input: as the user does, or after what it is used for."""
        if index < len(self.names) and self.names[index]:
            return f"input {self.names[index]!r}"
        at = self.first_use(index)
        return f"the input of {_name(self.graph.operations[at])}" if at >= 0 else "an input"

    def source(self, slot: int) -> tuple[int, int]:
        """Return the source of a slot: index of an operation and of its result, or -1 and index of an input."""
        return self._sources[slot]

    @cached_property
    def _sources(self) -> list[tuple[int, int]]:
        sources = [(-1, index) for index in range(len(self.graph.inputs))]
        for index, operation in enumerate(self.graph.operations):
            sources += [(index, which) for which in range(len(operation.plan.outputs))]
        return sources

    def first_use(self, slot: int) -> int:
        """Return the index of the first operation that reads a slot, through views; -1 if none does."""
        slots = {slot}
        for index, operation in enumerate(self.graph.operations):
            if slots.intersection(operation.operands):
                if operation.plan.op != READ:
                    return index
                slots.add(operation.first_output)
        return -1


def similarity(one: Known, other: Known) -> float:
    """Return how much two programs have in common, from 0 to 1. Equal operations count more than similar ones."""
    size = max(len(one.in_order), len(other.in_order))
    if not size:
        return 1.0
    in_order = one.in_order == other.in_order
    alike = size if in_order else in_common(one.operators, other.operators)
    equal = in_common(one.plans, other.plans) if alike else 0
    return (alike / size + equal / size + 2 * in_order) / 4


def in_common(one: Counter[Any], other: Counter[Any]) -> int:
    """Return how many elements two programs share, each as often as in both."""
    return sum([min(count, other[each]) for each, count in one.items() if each in other])


def is_part(part: Known, whole: Known) -> bool:
    """Return whether the operations of `part` are some of those of `whole`, in their order."""
    rest = iter(operation.plan.op for operation in whole.graph.operations)
    return all(any(op == other for other in rest) for op in (operation.plan.op for operation in part.graph.operations))


def differences(old: Known, new: Known, read: Known | None = None) -> list[Difference]:
    """Return how `new` differs from `old`, the cause first. `read` is the last part of a step that was read."""
    if old.key.target is not new.key.target:
        text = f"device {old.key.target.name} → {new.key.target.name}"
        return [Difference(Kind.DEVICE, text, new.line(0))]
    settings = [
        Difference(Kind.SETTING, text, new.line(0)) for text in environments(old.key.environment, new.key.environment)
    ]
    if settings:
        return settings
    if old.cause is not Cause.READ:
        cut = list(_cut(old, new, read))
        if cut:
            return cut
    before, after = old.graph.operations, new.graph.operations
    start = _common([o.plan.op for o in before], [o.plan.op for o in after])
    same_operators = start == len(before) == len(after)
    found = list(_inputs(old, new, start))
    if not same_operators:
        return [*found, _operations(old, new, start)]
    if found:
        return found
    for index, (one, other) in enumerate(zip(before, after, strict=True)):
        if one.plan is not other.plan:
            return [Difference(Kind.ARGUMENT, _argument(one, other), new.line(index))]
        if [old.source(slot) for slot in one.operands] != [new.source(slot) for slot in other.operands]:
            text = f"{_name(other)} reads other values than before"
            return [Difference(Kind.OPERANDS, text, new.line(index))]
    found = list(_outputs(old, new)) or list(_donation(old, new)) or list(_results(old, new))
    found = found or list(_numbers(old, new))
    return found or [_unseen(old, new)]


def _unseen(old: Known, new: Known) -> Difference:
    """Return what two programs that look alike may differ in, or why one was compiled twice."""
    parts = [part.name for part in fields(Key) if getattr(old.key, part.name) != getattr(new.key, part.name)]
    if parts:
        return Difference(Kind.AGAIN, f"the {' and the '.join(parts)} of its key differ", new.line(0))
    if program_cache.is_full():
        forgotten = "this program was compiled before, and had to leave memory since (XLA_COMPILATION_CACHE_SIZE)"
        return Difference(Kind.FORGOTTEN, forgotten, new.line(0))
    again = "this program was compiled before, for other numbers or by what keeps programs of its own"
    return Difference(Kind.AGAIN, again, new.line(0))


def _cut(old: Known, new: Known, read: Known | None) -> Iterator[Difference]:
    """Return whether `new` is the part of the step `old` that a read needs, or the rest of it."""
    count, whole = len(new.graph.operations), len(old.graph.operations)
    if count >= whole or not is_part(new, old):
        return
    if new.cause is Cause.READ:
        text = f"a value was read before the step ended, so {count} of its {whole} operations run by themselves"
        yield Difference(Kind.CUT, text, new.started_by)
    elif read is not None and count + len(read.graph.operations) >= whole and is_part(read, old):
        text = f"the other {count} of the {whole} operations of a step that ended early because a value was read"
        yield Difference(Kind.CUT, text, read.started_by)


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _name(operation: Operation) -> str:
    op = operation.plan.op
    views: dict[Hashable, str] = {READ: "a view", WRITE: "a write through a view"}
    name = views.get(op) or name_of(operation).removeprefix("aten::")
    return _AS_WRITTEN.get(name, name)


def _inputs(old: Known, new: Known, common: int) -> Iterator[Difference]:
    """Yield the inputs that the common operations at the start read in the same place, and that are not alike."""
    seen: set[int] = set()
    count = len(new.graph.inputs)
    for one, other in zip(old.graph.operations[:common], new.graph.operations[:common], strict=True):
        for before, slot in zip(one.operands, other.operands, strict=False):
            if slot >= count or before >= len(old.graph.inputs) or slot in seen:
                continue
            seen.add(slot)
            was, now = old.graph.inputs[before], new.graph.inputs[slot]
            if was is not now:
                at = new.first_use(slot)
                yield Difference(Kind.INPUT, _change(was, now, new.input_name(slot)), new.line(at))


def _change(was: Spec, now: Spec, name: str) -> str:
    if was.dtype is not now.dtype:
        return f"dtype of {name} {_short(was.dtype)} → {_short(now.dtype)}"
    if len(was.size) != len(now.size):
        return f"shape of {name} {list(was.size)} → {list(now.size)}"
    changed = [(dim, a, b) for dim, (a, b) in enumerate(zip(was.size, now.size, strict=True)) if a != b]
    if not changed and was.stride == now.stride:
        return f"division of {name} among the devices {was.sharding or 'none'} → {now.sharding or 'none'}"
    if not changed:
        return f"strides of {name} {was.stride} → {now.stride}"
    return f"{', '.join(f'dim {dim} of {name} {a} → {b}' for dim, a, b in changed)}"


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _operations(old: Known, new: Known, start: int) -> Difference:
    """Return the first place where the operations differ; the number of such places is approximate."""
    before, after = old.graph.operations[start:], new.graph.operations[start:]
    matcher = SequenceMatcher(
        None, [o.plan.op for o in before[:_LOOKED_AT]], [o.plan.op for o in after[:_LOOKED_AT]], autojunk=False
    )
    _, first, last, begin, end = next(block for block in matcher.get_opcodes() if block[0] != "equal")
    gone, come = before[first:last], after[begin:end]
    line = new.line(start + begin) or old.line(start + first)
    if not gone:
        return Difference(Kind.OPERATIONS, f"{_plural(len(come), 'new operation')} here: {_listed(come)}", line)
    if not come:
        line = old.line(start + first)
        text = f"{_plural(len(gone), 'operation')} left out: {_listed(gone)}"
        if len(new.graph.inputs) > len(old.graph.inputs) and {_name(operation) for operation in gone} <= _MAKERS:
            text += " (what the first step makes, the next ones have)"
        return Difference(Kind.OPERATIONS, text, line)
    return Difference(Kind.OPERATIONS, f"other operations here: {_listed(come)} instead of {_listed(gone)}", line)


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _listed(operations: Sequence[Operation]) -> str:
    counts = Counter(_name(operation) for operation in operations)
    names = [name if count == 1 else f"{count} × {name}" for name, count in counts.items()]
    rest = sum(list(counts.values())[4:])
    return ", ".join(names[:4]) + (f" and {rest} more" if rest else "")


def _argument(old: Operation, new: Operation) -> str:
    name = _name(new)
    was, now = _arguments(old.plan), _arguments(new.plan)
    for key in now:
        if key in was and _plain(was[key]) != _plain(now[key]):
            return f"{key} of {name} {_shown(was[key])} → {_shown(now[key])}"
    for key in was.keys() ^ now.keys():
        text = f"{_shown(now[key])} is given" if key in now else "is not given any more"
        return f"{key} of {name} {text}"
    if old.plan.numbers != new.plan.numbers:
        types = [", ".join(kind.__name__ for kind in plan.numbers) for plan in (old.plan, new.plan)]
        return f"type of a number of {name} {types[0]} → {types[1]}"
    if old.plan.compute_dtype != new.plan.compute_dtype:
        return f"{name} computes in {_short(old.plan.compute_dtype)} → {_short(new.plan.compute_dtype)}"
    for was_read, now_read in zip(old.plan.operands, new.plan.operands, strict=False):
        if was_read is not now_read:
            return _change(was_read, now_read, f"an operand of {name}")
    for made, makes in zip(old.plan.outputs, new.plan.outputs, strict=False):
        if made is not makes:
            return _change(made, makes, f"the result of {name}")
    return f"{name} was planned twice: for operands with other strides, or by two threads at once"


def _arguments(plan: Plan) -> dict[str, object]:
    args, kwargs = plan.arguments
    schema = schema_if_any(plan.op)
    if plan.op == CONSTRAINT:
        return {"the division": "none" if args[1] is None else str(args[1])}
    if schema is None:
        geometries = [argument for argument in args if isinstance(argument, Geometry)]
        if geometries:
            view = geometries[-1]
            return {"geometry": (view.size, view.stride, args[-1] if plan.numbers else view.offset)}
        return dict(zip(_parameters(plan.op), args, strict=False)) | kwargs
    return {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs


def _parameters(op: object) -> Iterable[str]:
    """Return what the arguments of an operation of ours are called, by the rule that lowers it."""
    rule = rule_of(op)
    named = inspect.signature(rule.lower).parameters.values() if rule is not None else ()
    names = [each.name for each in named if each.kind is each.POSITIONAL_OR_KEYWORD]
    return itertools.chain(names, (f"argument {place}" for place in itertools.count(len(names))))


def _plain(argument: object) -> object:
    # `True` and `1` are equal, and no list equals a tuple.
    if isinstance(argument, (list, tuple)):
        return tuple(_plain(element) for element in argument)
    return (type(argument), argument)


def _shown(argument: object) -> str:
    if isinstance(argument, (Operand, Number)):
        return "a value" if isinstance(argument, Operand) else "a number"
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(_shown(element) for element in argument)}]"
    return str(argument).removeprefix("torch.")


def _outputs(old: Known, new: Known) -> Iterator[Difference]:
    # Both have the same operations here.
    was, now = ({each.source(slot) for slot in each.graph.outputs} for each in (old, new))
    for sources, text in ((now - was, "is still held at the end"), (was - now, "is no longer held at the end")):
        indices = [index for index, _ in sorted(sources)]
        if indices:
            made = tuple(new.graph.operations[index] for index in indices if index >= 0)
            what = f"another set of live tensors: the result of {_listed(made) or 'an input'} {text}"
            yield Difference(Kind.OUTPUTS, what, new.line(indices[0]), made if sources == now - was else ())


def _donation(old: Known, new: Known) -> Iterator[Difference]:
    was, now = set(old.key.donated), set(new.key.donated)
    for slots, text in (
        (was - now, "is held elsewhere now, so its memory cannot be reused"),
        (now - was, "can be reused"),
    ):
        for slot in sorted(slots)[:1]:
            more = f" (and {len(slots) - 1} more)" if len(slots) > 1 else ""
            at = new.first_use(slot)
            subject = new.input_name(slot) if text.startswith("is") else f"the memory of {new.input_name(slot)}"
            yield Difference(Kind.DONATION, f"donation: {subject}{more} {text}", new.line(at))


def _results(old: Known, new: Known) -> Iterator[Difference]:
    was, now = old.key.results, new.key.results
    if was != now:
        yield Difference(Kind.RESULTS, f"results are divided among the devices otherwise: {was} → {now}", new.line(0))


def _numbers(old: Known, new: Known) -> Iterator[Difference]:
    for index, operation in enumerate(new.graph.operations):
        first = operation.first_number
        for at in range(first, first + len(operation.plan.numbers)):
            was, now = old.numbers[at], new.numbers[at]
            if at not in old.arguments and repr(was) != repr(now):
                after = "; from now on it is an argument" if at in new.arguments else ""
                what = "storage offset" if operation.plan.op in (READ, WRITE) else "constant"
                text = f"{what} {was!r} → {now!r} in {_name(operation)}{after}"
                yield Difference(Kind.NUMBER, text, new.line(index))
