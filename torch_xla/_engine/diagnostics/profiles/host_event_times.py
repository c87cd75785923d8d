"""Give operators of the host, and the ranges around them, the time that the device took for them.

PyTorch's profiler knows this by numbers that a launch of a kernel carries. Here a program computes many operators at
once, and fuses some of them. So operators are told apart by their names, their lines and their order: operators of one
name and line share the device's time for them in the order in which they were recorded, in equal parts. A range, such
as one of `record_function`, has the time of all the operators inside it.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from torch.autograd.profiler_util import FunctionEvent

from ...compat.names import torch as private
from .profile_programs import Origin
from .started_programs import OperatorPlace, StartedProgram

# The host's event that calls a graph of `torch.compile`, by the first words of the graph's name as an operator.
_COMPILED = {"compiled::forward": "CompiledFunction", "compiled::backward": "CompiledFunctionBackward"}


def add_device_times(
    host: Sequence[FunctionEvent],
    device: Sequence[tuple[FunctionEvent, Origin]],
    runs: Iterable[StartedProgram],
    begin: float,
) -> None:
    """Give each of `device` to the event of `host` that recorded it, as a kernel of it.

    `host` are events of PyTorch's profiler, with times in microseconds since `begin`; `device` are such events with
    their origins. An operation that no event recorded, such as one of a replay, counts for the innermost event around
    the start of its program; if there is none, for no event.
    """
    ordered = sorted(runs, key=lambda run: run.time)
    starts = [(run.time - begin) / 1000 for run in ordered]
    arounds = _innermost(host, starts)
    named = _by_name(host)
    recorded: defaultdict[OperatorPlace, list[FunctionEvent | None]] = defaultdict(list)
    of_name: defaultdict[str, list[FunctionEvent | None]] = defaultdict(list)
    for run, since, start, around in zip(ordered, [0.0, *starts], starts, arounds, strict=False):
        for place, event in _recorded_by(run, named, since, start):
            recorded[place].append(event or around)
            of_name[place.operator].append(event or around)
    ran: defaultdict[OperatorPlace, list[FunctionEvent]] = defaultdict(list)
    for event, origin in sorted(device, key=lambda pair: _start(pair[0])):
        ran[OperatorPlace.at(origin.recorded or event.name, origin.line)].append(event)
    for place, events in ran.items():
        owners = recorded.get(place) or of_name.get(place.operator)
        for index, event in enumerate(events):
            if owners:
                owner = owners[index * len(owners) // len(events)]
            else:  # an operation that XLA put in by itself
                before = bisect_right(starts, _start(event))
                owner = arounds[before - 1] if before else None
            if owner is not None:
                owner.append_kernel(event.name, event.device_index, event.time_range.elapsed_us())


def _by_name(host: Iterable[FunctionEvent]) -> Mapping[str, list[FunctionEvent]]:
    """Return the events of each name in the order of their starts; names lose the underscore of in-place operators."""
    found: defaultdict[str, list[FunctionEvent]] = defaultdict(list)
    for event in filter(_is_of_the_host, host):
        found[event.name.rstrip("_")].append(event)
    for events in found.values():
        events.sort(key=_start)
    return found


def _recorded_by(
    run: StartedProgram, named: Mapping[str, Sequence[FunctionEvent]], begin: float, end: float
) -> Iterable[tuple[OperatorPlace, FunctionEvent | None]]:
    """Yield the operators of a run, each with the host's event between two times that recorded it, if any."""
    places = [*run.places()]
    totals, counts = Counter([place.operator for place in places]), Counter[str]()
    events: dict[str, Sequence[FunctionEvent]] = {}
    for name in totals:
        of_name = named.get(_COMPILED.get(name.partition("_")[0], name.rstrip("_")), ())
        first, last = (bisect_left(of_name, time, key=_start) for time in (begin, end))
        events[name] = of_name[first:last]
    for place in places:
        name, known = place.operator, events[place.operator]
        event = known[counts[name] * len(known) // totals[name]] if known else None
        counts[name] += 1
        yield place, event


def _innermost(host: Iterable[FunctionEvent], times: Sequence[float]) -> list[FunctionEvent | None]:
    """Return for each time, in ascending order, the event of the host that began last of those that contain it."""
    waiting = deque(sorted(filter(_is_of_the_host, host), key=_start))
    begun: list[FunctionEvent] = []
    found: list[FunctionEvent | None] = []
    for time in times:
        while waiting and _start(waiting[0]) <= time:
            begun.append(waiting.popleft())
        while begun and begun[-1].time_range.end <= time:
            begun.pop()
        found.append(begun[-1] if begun else None)
    return found


def _is_of_the_host(event: FunctionEvent) -> bool:
    return event.device_type == private.DeviceType.CPU and not event.is_async


def _start(event: FunctionEvent) -> float:
    return float(event.time_range.start)
