"""The tape: operations in the order the program issued them, as one flat list that is its own key.

The list holds, entry by entry, either a `Spec` (a value that exists already enters as an input) or a `Plan` followed
by the slots of its operands and, for a random operation, the number of the draw. Slots count the values of the tape in
order. Two steps that do the same give equal lists, and comparing them costs no more than comparing tuples of pointers.

The list, the values, the numbers and the draws grow together: by stores alone, between which no interrupt comes
(`atomic`). All of this is in `Tape.append` and `Tape.enter`; `dispatch/recording_kernel.py` has copies of the first,
and `tensor/storage.py` one of the second, for many values at once.
An allocation may collect garbage, whose finalizers may record too, or have the tape evaluated: then it has ended and
takes no more operations, and the interrupted call records on the next tape (`tensor/storage.py`, `record_plan`).
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from itertools import count, repeat
from operator import itemgetter
from threading import get_ident
from time import perf_counter_ns
from typing import Any, NamedTuple, NoReturn

from ..metrics.user_lines import Line
from .call_plan import Plan
from .value_spec import Spec


class Value:
    """The value of a storage: immutable, computed (`buffer`) or described by a tape (`tape`, `slot`).

    A value without either is uninitialised memory, which is zeros if it is read. One value has at most one buffer and
    one buffer belongs to one value, so the holder of the last reference may donate the buffer.
    """

    __slots__ = ("buffer", "contents", "device", "line", "replaces", "room", "shared", "slot", "spec", "tape")

    # Of a value from the host: its elements if they are few, so that indices and masks can be checked, or `None`. Not
    # set for what a program computed.
    contents: Any
    # The user's line that made it: file, line, function, or `None`. Not set before it is computed.
    line: "Line | None"
    # Of one that was written over another one of its tape: the tape's number and the other's slot (`Tape.replaced_by`).
    # Not set for others.
    replaces: int
    # Of a value that is the first part of another one, which has spare capacity (`tensor/spare_capacity.py`): that one.
    # Not set for others.
    room: "Value"

    def __init__(self, spec: Spec, device: Any, tape: "Tape | None", slot: int) -> None:
        self.spec = spec
        self.device = device
        self.tape = tape
        self.slot = slot
        self.buffer: Any = None
        self.shared = False  # the buffer has a holder outside the engine (DLPack, jax.Array): it must not be donated

    @property
    def state(self) -> str:
        """ "data", "pending" or "empty"."""
        if self.buffer is not None:
            return "data"
        return "empty" if self.tape is None else "pending"


# Set an attribute of a value, whatever its class. Written in C.
set_buffer: Callable[[Value, object], None] = vars(Value)["buffer"].__set__
set_tape: Callable[[Value, "Tape | None"], None] = vars(Value)["tape"].__set__
set_line: Callable[[Value, Line | None], None] = vars(Value)["line"].__set__
set_replaces: Callable[[Value, int], None] = vars(Value)["replaces"].__set__


class Ended(Exception):
    """The tape was evaluated before the operation was on it."""


class Front(NamedTuple):
    """How much of a tape, counted from its front, an evaluation of a thread is to run."""

    thread: int
    entries: int  # of the code
    values: int


# As the length of what a tape begins with: reads run all of it, though it begins with nothing; or they run only what
# they need, because there was no room for something on the tape.
ALL, ALONE = -1, -2

_position: Callable[[tuple[int, int]], int] = itemgetter(0)

# Every tape has a number, and what is below this belongs to one tape.
_SLOTS = 1 << 40
_first_slots = count(_SLOTS, _SLOTS)


class Tape:
    """Operations recorded on one device since its last sync."""

    __slots__ = (
        "code",
        "composites",
        "draws",
        "ended",
        "expected",
        "expected_code",
        "expected_lines",
        "first_slot",
        "front",
        "lines",
        "numbers",
        "placed",
        "reads",
        "rest",
        "scopes",
        "shared",
        "started",
        "truths",
        "turns",
        "values",
    )

    def __init__(
        self,
        expected: Sequence[object] | None = None,
        expected_lines: dict[int, Line] | None = None,
        placed: Callable[[Value], Spec] | None = None,
    ) -> None:
        self.started = perf_counter_ns()  # when its first operand entered, or its first operation was recorded
        self.first_slot = next(_first_slots)  # its number: slots of all tapes count from here in `Value.replaces`
        self.ended = False  # it was evaluated: another one is in its place
        self.rest = 0  # so much of its code is what an evaluation of a part of another left undone, `ALL` or `ALONE`
        self.code: list[Any] = []
        self.placed = placed  # gives the spec of a value with its sharding, where values can have one
        self.values: list[Value] = []
        self.composites: dict[tuple[str, str], int] = {}  # the number of each that was marked, by name and identity
        self.numbers: list[Any] = []
        self.draws: list[int] = []
        # Reading a storage through a view is recorded once: (slot of the base, view) → slot.
        self.reads: dict[tuple[int, object], int] = {}
        # Named scopes: (position in the code, the scopes open from there on, outermost first).
        self.scopes: list[tuple[int, tuple[str, ...]]] = []
        self.shared: list[int] = []  # slots whose buffers have a holder outside the engine
        # The code of the tape that followed the previous one last time. As long as this one walks the same path its
        # source lines are known; the first step off the path begins to collect new ones.
        self.expected = self.expected_code = expected
        self.expected_lines = expected_lines
        self.lines: dict[int, Line] = {}
        # The recording threads: (position in the code, the thread from there on). While the tape follows its expected
        # path, that is the thread that began it.
        self.turns: list[tuple[int, int]] = [(0, get_ident())]
        # Programs of truth values that were computed beside the tape, with their operations (`constant_predicates`).
        self.truths: dict[Hashable, frozenset[int]] = {}
        self.front: Front | None = None  # where it was put in order for one thread (`partition`)

    def enter(self, value: Value, empty: Plan | None = None) -> int:
        """Give a value of another place a slot on this tape; `empty` is the plan for uninitialised memory.

        A tape that has ended gives none: -1.
        """
        values = self.values
        if self.ended:
            return -1
        if not values:
            self.begin()
        if value.buffer is not None:
            entry: Spec | Plan | None = value.spec if self.placed is None else self.placed(value)
        elif value.tape is None:
            entry = empty
        elif isinstance(value.tape, Failed):
            value.tape.refuse()
        else:
            refuse_running()
        entered, kept = (entry,), (value,)
        # From here on nothing is allocated that garbage could be collected for: a finalizer may record, too.
        if self.ended:
            return -1
        if value.tape is self:
            return value.slot
        slot = len(values)
        self.code += entered
        values += kept
        value.tape = self
        value.slot = slot
        if value.shared:
            self.shared += (slot,)
        return slot

    def take_over(self, value: Value, spec: Spec) -> int:
        """Enter a value of another tape that has a buffer, and this spec, when this tape is used.

        The value learns it later.
        """
        slot = len(self.values)
        if value.shared:
            self.shared += (slot,)
        self.code += (spec,)
        self.values += (value,)
        return slot

    def results_of(self, plan: Plan, device: Any, slot: int) -> list[Value]:
        """Make the values of a call's results, from `slot` on, which are not on the tape yet."""
        return [*map(Value, plan.outputs, repeat(device), repeat(self), count(slot))]

    def append(
        self,
        plan: Plan,
        operands: Sequence[int],
        device: Any,
        numbers: Sequence[Any] = (),
        draws: Sequence[int] = (),
    ) -> list[Value]:
        """Record one call, whose operands have these slots, and return the values of its results.

        Raises `Ended` if the tape was evaluated meanwhile, and records nothing then.
        """
        values = self.values
        if not values:
            self.begin()
        while True:
            slot = len(values)
            made = self.results_of(plan, device, slot)
            recorded: tuple[object, ...] = (plan, *operands)
            if len(values) == slot:
                break  # or garbage was collected, and a finalizer has recorded something
        if self.ended:
            raise Ended
        self.code += recorded
        self.numbers += numbers
        self.draws += draws
        values += made
        return made

    def replaced_by(self, value: Value) -> Value | None:
        """Return the value of this tape that `value` was written over in its storage, if there was one."""
        slot: int = getattr(value, "replaces", -1) - self.first_slot
        return self.values[slot] if 0 <= slot < _SLOTS else None

    def begin(self) -> None:
        """Note when, and in which thread, the first operand enters or the first operation is recorded."""
        self.started = perf_counter_ns()
        self.turns[0] = 0, get_ident()

    def recorder(self, position: int) -> int:
        """Return the thread that recorded the operation at this position of the code."""
        return self.turns[bisect_right(self.turns, position, key=_position) - 1][1]

    def expects(self, plan: Plan) -> bool:
        """Return whether the path that is walked has `plan` here, at a line that is known."""
        position, path = len(self.code), self.expected
        follows = path is not None and position < len(path) and path[position] is plan
        return follows and self.expected_lines is not None and position in self.expected_lines

    def all_lines(self, code: Sequence[object]) -> dict[int, Line]:
        """Return the source lines of `code` by position, including those of the known path.

        An interrupt leaves the line of a call that was not recorded, a finalizer lines of later operations.
        """
        own = {at: line for at, line in self.lines.items() if at < len(code)}
        if not self.expected_lines or self.expected_code is None:
            return own
        left = min(min(own, default=len(code)), len(self.expected_code))
        # An entry between two calls (uninitialised memory, a view) may leave the path before the next call notices.
        same = [at for at in self.expected_lines if at < left and code[at] is self.expected_code[at]]
        return {**{at: self.expected_lines[at] for at in same}, **own}


def refuse_running() -> NoReturn:
    """Raise an error for a value of a tape that was replaced by another one."""
    raise RuntimeError(
        "a tensor was used that a running program computes. A function which a program calls on the host has to be "
        "given what it needs as arguments, or use the tensor after the step; if there is none, please report this"
    )


class Failed(Tape):
    """The empty tape of values that cannot be computed: their operation could not be lowered, or a run lost them."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        super().__init__()
        self.ended = True
        self.why = why

    def refuse(self) -> NoReturn:
        """Raise an error for each later use of one of the values."""
        raise RuntimeError(f"this value was never computed, because an operation failed at a sync: {self.why}")
