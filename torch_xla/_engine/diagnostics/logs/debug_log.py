"""`PT_XLA_DEBUG`: each compilation and execution with its cause, metric warnings, and the main costs at exit.

The texts have the form that PyTorch/XLA documents, because people and programs read them.
"""

import atexit
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ... import config
from ...compiled import eager
from ...ir.graph_text import digest
from ...metrics import counters, events, report, samples
from ...metrics.events import Cause, Compilation, Direction, Execution, Fallback, Sizes, StepEnd, Transfer
from ...metrics.user_lines import Line
from ...processes import identity
from ..recompiles import causes
from . import stack_places
from .host_read_counts import Read, Tally
from .stack_places import CallSite, here

PROFILER = "pt-xla-profiler"

_WIDTH = 80

# More than one of these in two steps is too many, after enough steps to know what is normal.
_RARE = ("CompileTime", "TransferFromDeviceTime")
_MOST_PER_STEP = 0.5
_WARM_UP = 10

# Seconds after which one sample is reported.
_SLOW = {"CompileTime": 300.0, "ExecuteTime": 30.0}


def findings() -> list[str]:
    """Return what the metrics say is wrong, one line each."""
    found = []
    steps = counters.value_of("MarkStep") or 0
    for name in _RARE:
        data = samples.data_of(name)
        if data is not None and steps > _WARM_UP and data.total_samples > _MOST_PER_STEP * steps:
            found.append(f"{name} too frequent: {data.total_samples} counts during {steps} steps")
    for name, seconds in _SLOW.items():
        data = samples.data_of(name)
        longest = max((value for _, value in data.samples), default=0.0) if data is not None else 0.0
        if longest > seconds * 1e9:
            found.append(f"{name} too slow: longest instance took {report.format_duration(longest)}")
    unlowered = [name for name in report.fallback_names() if name not in report.READS]
    if unlowered:
        listed = "".join(f"{name}, " for name in unlowered)
        found.append(f"Op(s) not lowered: {listed} Please open a GitHub issue with the above op lowering requests.")
    return found


def reported_read(event: object, most_frames: int) -> Read | None:
    """Return the read that an event reports, made by the running operator of this thread."""
    if not isinstance(event, Fallback | Transfer) or (
        isinstance(event, Transfer) and event.direction is not Direction.FROM_DEVICE
    ):
        return None
    place = here()
    # An operator that runs on the CPU is reported when it is done, however many operands it fetched.
    calls = 0 if place.is_fallback and isinstance(event, Transfer) else 1
    early = int(isinstance(event, Transfer) and event.forced)
    return Read(place.operator, tuple(map(stack_places.text, place.frames[:most_frames])), calls, early)


class Analysis:
    """Listens to events and writes an analysis to `file`, or to the standard error without one."""

    def __init__(self, level: int, file: str, most_frames: int) -> None:
        self.settings = (level, file, most_frames)
        self._level = level
        self._file = file
        self._most_frames = most_frames
        self._hashes: WeakKeyDictionary[object, str] = WeakKeyDictionary()
        self._reads = Tally()

    def start(self) -> None:
        """Begin to listen."""
        # A compilation is reported before it begins: it may take minutes.
        events.guard(self._before)
        events.listen(self._hear)
        atexit.register(self.sum_up)

    def stop(self) -> None:
        """Stop listening; print no summary at exit."""
        atexit.unregister(self.sum_up)
        events.unlisten(self._hear)
        events.unguard(self._before)

    def _before(self, event: object) -> None:
        # In eager mode every operation is a program, which is not reported.
        if isinstance(event, Compilation) and not eager.is_on():
            place = here()
            lines = self._explained("Compilation Cause", event.program, place.cause(event.cause, compiling=True), place)
            self._write("Compilation Analysis", lines)
            why = causes.explain(event)
            if why.is_recompilation:
                self._write("Recompilation Analysis", [str(why)], framed=False)

    def _hear(self, event: object) -> None:
        if isinstance(event, Compilation | Execution):
            if not eager.is_on():
                self._write_program(event)
        elif isinstance(event, StepEnd):
            self._write(PROFILER, findings(), framed=False)
        else:
            read = reported_read(event, self._most_frames)
            if read is not None:
                self._reads.add(read)

    def _write_program(self, event: Compilation | Execution) -> None:
        if isinstance(event, Execution):
            if self._level > 1:
                place = here()
                lines = self._explained("Execution Cause", event.program, place.cause(event.cause), place)
                self._write("Execution Analysis", lines)
        elif event.sizes is not None:
            self._write("Post Compilation Analysis", _sizes(event.sizes))  # programs count the lines of this block
            if event.shared:
                times = f"graph {self._hash_of(event.program)}: compiled once: {causes.times(event.shared)}"
                self._write("Stage Analysis", [times], framed=False)

    def _shown(self, place: CallSite) -> tuple[Line, ...]:
        return place.frames[: self._most_frames]

    def _explained(self, title: str, program: Any, cause: str, place: CallSite) -> list[str]:
        graph = program.graph
        lines = [title, f"  {cause}", "Graph Info:"]
        if place.graph:
            lines.append(f"  Graph Name: {place.graph}")
        return [
            *lines,
            f"  Graph Hash: {self._hash_of(program)}",
            f"  Number of Graph Inputs: {len(graph.inputs) + bool(graph.draws)}",  # the seed is one
            f"  Number of Graph Outputs: {len(graph.outputs)}",
            *self._frames(place),
        ]

    def _hash_of(self, program: Any) -> str:
        known = self._hashes.get(program)
        if known is None:
            known = self._hashes[program] = digest(program.graph).hex()
        return known

    def sum_up(self) -> None:
        """Print where values were brought to the host, the most frequent place first. Runs at exit and after Ctrl-C."""
        self._write(PROFILER, self._reads.summary(), framed=False)

    def tell_unexpected(self, cause: Cause) -> None:
        """Report where operations would run that may not."""
        place = here()
        self._write(
            "Unexpected Execution Analysis", ["Execution Cause", f"  {place.cause(cause)}", *self._frames(place)]
        )

    def _frames(self, place: CallSite) -> list[str]:
        lines = ["Python Frame Triggered Execution:", *(f"  {stack_places.text(line)}" for line in self._shown(place))]
        return lines if len(place.frames) <= self._most_frames else [*lines, "  .........."]

    def _write(self, prefix: str, lines: Iterable[str], framed: bool = True) -> None:
        if identity.local_replica_index() != 0:
            return
        body = list(lines)
        if framed:
            body = ["=" * _WIDTH, *body, "-" * _WIDTH, "=" * _WIDTH]
        text = "".join(f"{prefix}: {line}\n" for line in body) + ("\n" if framed else "")
        if self._file:
            with Path(self._file).open("a") as file:
                file.write(text)
        else:
            sys.stderr.write(text)


def _sizes(sizes: Sizes) -> list[str]:
    return [
        f"Graph input size: {sizes.inputs / 1e9:.6f} GB",
        f"Graph output size: {sizes.outputs / 1e9:.6f} GB",
        f"Aliased Input size: {sizes.aliased / 1e9:.6f} GB",
        f"Intermediate tensor size: {sizes.intermediate / 1e9:.6f} GB",
        f"Compiled program size: {sizes.code / 1e9:.6f} GB",
    ]


_running: Analysis | None = None


def tell_unexpected(cause: Cause) -> None:
    """Report where operations would run that may not, if settings ask for explanations."""
    if _running is not None:
        _running.tell_unexpected(cause)


def apply_settings() -> None:
    """Start the listeners that the settings ask for, and stop others."""
    global _running
    level = config.debug_level()
    wanted = (level, config.debug_file(), config.debug_max_frames()) if level else None
    if wanted == (_running.settings if _running is not None else None):
        return
    if _running is not None:
        _running.stop()
    _running = Analysis(*wanted) if wanted is not None else None
    if _running is not None:
        _running.start()
