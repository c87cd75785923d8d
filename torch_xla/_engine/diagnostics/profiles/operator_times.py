"""Device time by the user's operators and lines, from a profile."""

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from jax.profiler import ProfileData

from ...metrics.user_lines import Line, text
from ...quiet_calls import quiet
from .profile_programs import Origin, ProfilePrograms

# Events that last as long as the operations inside them.
AROUND_OTHERS = frozenset(("while", "conditional", "call", "async-start", "async-done"))
UNKNOWN = Origin("", None, "")
NO_PROFILE = (
    "There is no profile in {folder}. One is written there by torch_xla.debug.profiler.start_trace({folder!r}) and "
    "stop_trace()."
)


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Time of one operator at one line."""

    operator: str  # with the blocks around it, "forward/net/aten::linear"; "" for what XLA put in by itself
    line: Line | None
    milliseconds: float
    count: int  # operations of the device


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """The operators in a profile, the slowest first."""

    file: str
    rows: tuple[OperatorTime, ...]

    @property
    def milliseconds(self) -> float:
        """The time of all operations together."""
        return sum(row.milliseconds for row in self.rows)

    def __str__(self) -> str:
        most = 25
        width = max([len(row.operator) for row in self.rows[:most]] + [len("operator")])
        lines = [f"{'ms':>10} {'%':>5} {'count':>6}  {'operator':{width}}  line"]
        for row in self.rows[:most]:
            part = 100 * row.milliseconds / (self.milliseconds or 1)
            where = text(row.line) if row.line else ""
            name = row.operator or "(XLA)"
            lines.append(f"{row.milliseconds:10.3f} {part:5.1f} {row.count:6}  {name:{width}}  {where}".rstrip())
        if len(self.rows) > most:
            left = self.rows[most:]
            lines.append(f"{sum(row.milliseconds for row in left):10.3f}  … {len(left)} more")
        return "\n".join(lines)


def operator_times(folder: str | os.PathLike[str]) -> OperatorTimes:
    """Return the operators in the latest profile below `folder`."""
    files = sorted(Path(folder).rglob("*.xplane.pb"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise FileNotFoundError(NO_PROFILE.format(folder=os.fspath(folder)))
    content = files[-1].read_bytes()
    times: defaultdict[tuple[str, Line | None], float] = defaultdict(float)
    counts: defaultdict[tuple[str, Line | None], int] = defaultdict(int)
    programs = ProfilePrograms(content)
    for (module, number), operations in _operations(content).items():
        known = programs.origins(module, number, operations.keys())
        for name, durations in operations.items():
            origin = known.get(name, UNKNOWN)
            if origin.opcode not in AROUND_OTHERS:
                times[origin.name, origin.line] += sum(durations) / 1e6
                counts[origin.name, origin.line] += len(durations)
    rows = [OperatorTime(*key, times[key], counts[key]) for key in sorted(times, key=lambda key: -times[key])]
    return OperatorTimes(str(files[-1]), tuple(rows))


# JAX makes the type of `stats` when first asked for them. From Python 3.12 on that warns, and a warning that is an
# error ends the process there.
without_deprecation = quiet(DeprecationWarning)


@without_deprecation
def _operations(content: bytes) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Return the durations of the operations, in nanoseconds, by name and number of the program and operation name."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for plane in ProfileData.from_serialized_xspace(content).planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    program = found.setdefault((str(stats.get("hlo_module")), str(stats.get("program_id"))), {})
                    program.setdefault(str(stats["hlo_op"]), []).append(event.duration_ns)
    return found
