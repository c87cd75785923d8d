"""Measure the host's waiting by line of the user: each value that was read, each wait that was asked for."""

import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...errors import TransferRefused
from ...metrics import events, user_lines
from ...metrics.events import Cause, Compilation, Direction, Evaluation, Fallback, Transfer, Wait
from ...metrics.report import format_size
from ...metrics.user_lines import Line
from ..recompiles.causes import short

_MOST_LINES = 1000
_FROM_DEVICE = Direction.FROM_DEVICE
_OTHERS: Line = ("<other lines>", 0, "")


@dataclass(slots=True)
class Cost:
    """Cost of one line of the user's program for the host, in seconds and bytes."""

    line: Line
    reads: int = 0  # values brought to the host
    forced: int = 0  # before these reads, or others, recorded operations had to run
    waits: int = 0  # waits without a value, such as sync(wait=True)
    seconds: float = 0.0  # in all
    compiling: float = 0.0  # of these: compiling
    longest: float = 0.0  # of the parts of one such call
    bytes: int = 0

    def add(self, seconds: float) -> None:
        """Count a part that took so long."""
        self.seconds += seconds
        self.longest = max(self.longest, seconds)

    @property
    def source(self) -> str:
        """The user's line as it is written, if its file can be read."""
        return linecache.getline(self.line[0], self.line[1]).strip()


_costs: dict[Line, Cost] = {}


def _cost_of(line: Line) -> Cost:
    found = _costs.get(line)
    if found is None:
        if len(_costs) >= _MOST_LINES:
            _merge_the_cheapest()
        found = _costs[line] = Cost(line)
    return found


def _merge_the_cheapest() -> None:
    rest = _costs.pop(_OTHERS, None) or Cost(_OTHERS)
    for cost in sorted(_costs.values(), key=lambda cost: cost.seconds)[: _MOST_LINES // 4]:
        rest.reads += cost.reads
        rest.forced += cost.forced
        rest.waits += cost.waits
        rest.seconds += cost.seconds
        rest.compiling += cost.compiling
        rest.longest = max(rest.longest, cost.longest)
        rest.bytes += cost.bytes
        del _costs[cost.line]
    _costs[_OTHERS] = rest


def note_transfer(event: Transfer) -> None:
    """Add the cost of a value that came from the device."""
    direction, _, size, frames, _, seconds, forced, evaluating = event
    if direction is _FROM_DEVICE:
        cost = _costs.get(frames[0]) or _cost_of(frames[0])
        seconds += evaluating
        cost.reads += 1
        cost.forced += forced
        cost.bytes += size
        cost.seconds += seconds
        if seconds > cost.longest:
            cost.longest = seconds


def note_wait(event: Wait) -> None:
    """Add a wait that the program asked for."""
    if event.asked:
        cost = _cost_of(event.frames[0])
        cost.waits += 1
        cost.add(event.seconds)


def note_evaluation(event: Evaluation) -> None:
    """Add an evaluation for a value that is taken elsewhere than to the host."""
    if event.cause is Cause.READ and not event.for_transfer:
        cost = _cost_of(event.frames[0])
        cost.forced += 1
        cost.add(event.seconds)


def note_compilation(event: Compilation) -> None:
    """Add the time a line had to compile before it could read a value: a part of the cost."""
    if event.cause is Cause.READ:
        _cost_of(event.frames[0]).compiling += event.seconds


def costs() -> list[Cost]:
    """Return the cost of every line where the host waited, the most expensive first."""
    return sorted(_costs.values(), key=lambda cost: -cost.seconds)


def clear() -> None:
    """Forget the costs."""
    _costs.clear()


def report(most: int = 20) -> str:
    """Return the costs as a table."""
    found = costs()
    if not found:
        return "The host waited for no value.\n"
    total = sum(cost.seconds for cost in found)
    reads = sum(cost.reads for cost in found)
    text = f"{reads} values brought to the host, {total * 1e3:.1f} ms of the host in all\n"
    text += f"  {'ms':>10} {'reads':>7} {'forced':>7} {'waits':>6} {'compiling':>10}  line\n"
    for cost in found[:most]:
        text += (
            f"  {cost.seconds * 1e3:10.1f} {cost.reads:7} {cost.forced:7} {cost.waits:6} {cost.compiling * 1e3:10.1f}"
            f"  {short(cost.line)} in {cost.line[2]}: {cost.source}\n"
        )
    return text + (f"  and {len(found) - most} more lines\n" if len(found) > most else "")


@contextmanager
def refused(from_device: bool, to_device: bool) -> Iterator[None]:
    """Refuse transfers within the block, and evaluations for a value, before they begin."""

    def refuse(event: events.Event) -> None:
        if isinstance(event, Transfer):
            if event.direction is Direction.FROM_DEVICE and from_device:
                raise TransferRefused(_refusal(event.frames[0], f"a value of {format_size(event.bytes)}", event.forced))
            if event.direction is Direction.TO_DEVICE and to_device:
                size, where = format_size(event.bytes), user_lines.text(event.frames[0])
                raise TransferRefused(
                    f"no_transfer(to_device=True) refuses to bring {size} to the device for {where}\n"
                    "Make the tensor on the device, or move it before the block."
                )
        elif isinstance(event, Evaluation) and event.cause is Cause.READ and from_device:
            raise TransferRefused(_refusal(event.frames[0], "a value", True))
        elif isinstance(event, Fallback) and from_device:
            raise TransferRefused(
                f"no_transfer() refuses to run {event.operator} on the CPU for {user_lines.text(event.frames[0])}: it "
                f"has "
                "no XLA lowering, so its inputs would travel to the host and its results back. Move the call out of "
                "the block, or write it with operators that have one."
            )

    events.guard(refuse)
    try:
        yield
    finally:
        events.unguard(refuse)


def _refusal(line: Line, what: str, forced: bool) -> str:
    source = linecache.getline(line[0], line[1]).strip()
    return (
        f"no_transfer() refuses to bring {what} to the host for "
        f"{user_lines.text(line)}{f': {source}' if source else ''}\n"
        + (
            "The operations recorded so far would have to run first, and the host would wait for them. "
            if forced
            else ""
        )
        + "Look at values after the step (`xm.add_step_closure`), or keep the decision on the device (`torch.where`)."
    )
