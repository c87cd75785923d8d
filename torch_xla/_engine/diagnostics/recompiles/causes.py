"""Explain why programs are compiled: compare each new one with earlier ones, and report the difference in one line."""

import logging
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...caching.bounded import put_last
from ...errors import CompilationRefused
from ...metrics import events, user_lines
from ...metrics.events import Cause, Compilation
from ...metrics.user_lines import Line
from .differences import Difference, Kind, Known, differences, in_common, is_part, similarity
from .retained_results import keepers

# Limits of the programs kept for comparison: their number, and their operations in all.
_MOST_PROGRAMS = 128
_MOST_OPERATIONS = 500_000
_MOST_EXPLANATIONS = 512
_MOST_REASONS = 4096
_SHOWN = 3  # differences in one line
_FEW, _MANY = 3, 6  # operations: if all of the few are in another program, or most of the many, the two are compared

_log = logging.getLogger("torch_xla.recompiles")

_ADVICE = {
    Kind.CUT: "Read values after the step (`xm.add_step_closure`), or in every step.",
    Kind.INPUT: "Pad inputs to a few sizes, or drop the last, smaller batch.",
    Kind.OPERATIONS: "Keep branches that change out of the step, or compute both sides and choose with torch.where.",
    Kind.ARGUMENT: "An argument that changes from step to step belongs in a tensor.",
    Kind.NUMBER: "Each value of a number that decides a shape is compiled: keep it in a tensor if you can.",
    Kind.SETTING: "Choose settings once, before the first step.",
    Kind.OUTPUTS: "Tensors that are kept in some steps only make two programs: keep them in all, detached.",
    Kind.FORGOTTEN: "Raise XLA_COMPILATION_CACHE_SIZE.",
}


# As in "dim 1 of input 'tokens' 37 → 41".
_CHANGED_SIZE = re.compile(r"dim \d+ of .*?(\d+) → (\d+)")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one program was compiled. As text: `recompiled (train.py:42): dim 1 of input 'tokens' 37 → 41`."""

    differences: tuple[Difference, ...]
    line: Line  # first line of the user's program that differs, if known
    started_by: Line  # what made it run: a sync, or the reading of a value
    cause: Cause
    operations: int
    seconds: float  # of the compilation; 0 if it was refused
    start: float  # by `time.perf_counter`
    shared: tuple[tuple[int, int], ...] = ()  # as in `Compilation`

    @property
    def is_recompilation(self) -> bool:
        """Return whether a similar program was compiled before."""
        return self.differences[0].kind is not Kind.NEW

    def __str__(self) -> str:
        verb = "recompiled" if self.is_recompilation else "compiled"
        texts = [difference.text for difference in self.differences]
        more = f", and {len(texts) - _SHOWN} more differences" if len(texts) > _SHOWN else ""
        return f"{verb} ({short(self.line)}): {', '.join(texts[:_SHOWN])}{more}"


_known: "deque[Known]" = deque(maxlen=_MOST_PROGRAMS)
_explanations: "deque[Explanation]" = deque(maxlen=_MOST_EXPLANATIONS)
# How often each reason came, for the log.
_reasons: dict[tuple[Kind, Line], int] = {}


def short(line: Line) -> str:
    """Return it as in "train.py:42"."""
    return f"{os.path.basename(line[0])}:{line[1]}"


def explained() -> list[Explanation]:
    """Return why the last programs were compiled, oldest first."""
    return list(_explanations)


def times(shared: Iterable[tuple[int, int]]) -> str:
    """Return what is compiled once and run several times, as in "6 × 48, 6 × 31 operations"."""
    return f"{', '.join(f'{often} × {operations}' for often, operations in shared)} operations"


def clear() -> None:
    """Forget the explanations, not the programs they compare with."""
    _explanations.clear()
    _reasons.clear()


def note(compilation: Compilation) -> None:
    """Explain a compilation that was done, and remember its program."""
    new = Known.of(compilation)
    explanation = _explain(compilation, new)
    _explanations.append(explanation)
    _known.append(new)
    while len(_known) > 1 and sum(len(each.graph.operations) for each in list(_known)) > _MOST_OPERATIONS:
        _known.popleft()
    _log_explanation(explanation)


def explain(compilation: Compilation) -> Explanation:
    """Return why a program is compiled, or would be."""
    return _explain(compilation, Known.of(compilation))


def _explain(compilation: Compilation, new: Known) -> Explanation:
    found = [_with_keepers(each, compilation) for each in _differences(new)]
    line = next((each.line for each in found if each.line is not None), compilation.frames[0])
    return Explanation(
        tuple(found),
        line,
        compilation.frames[0],
        compilation.cause,
        len(new.graph.operations),
        compilation.seconds,
        compilation.start,
        compilation.shared,
    )


def _with_keepers(difference: Difference, compilation: Compilation) -> Difference:
    if not difference.held:
        return difference
    names = keepers(compilation.program.target, difference.held)
    text = difference.text + (f", by {names}" if names else "")
    return replace(difference, text=text, held=())  # operations are not kept


def _differences(new: Known) -> list[Difference]:
    comparable = [old for old in list(_known) if _is_comparable(old, new)]
    related = [old for old in comparable if _shares_lines(old, new)] or [
        old for old in comparable if _shares_operations(old, new)
    ]
    if related:
        read = next((old for old in reversed(list(_known)) if old.cause is Cause.READ), None)
        _, _, nearest = max((similarity(old, new), index, old) for index, old in enumerate(related))
        return differences(nearest, new, read)
    count = len(new.graph.operations)
    which = "the first program" if not _known else "a program unlike those before"
    return [Difference(Kind.NEW, f"{which}, of {count} operation{'' if count == 1 else 's'}", new.line(0))]


def _is_comparable(old: Known, new: Known) -> bool:
    """Return whether the two may be compared: a read may be a part of a step, but a step is no variant of a read."""
    return (old.cause is Cause.READ) == (new.cause is Cause.READ) or (old.cause is not Cause.READ and is_part(new, old))


def _shares_lines(old: Known, new: Known) -> bool:
    """Return whether both come from the same code of the user: they share most lines of the smaller program."""
    one, other = old.known_lines, new.known_lines
    return 2 * len(one & other) >= min(len(one), len(other)) and not old.operators.keys().isdisjoint(new.operators)


def _shares_operations(old: Known, new: Known) -> bool:
    """Return whether most of the smaller one is in the other: other lines may make the program that these made."""
    size = min(len(old.graph.operations), len(new.graph.operations))
    shared = in_common(old.plans, new.plans)
    return (size >= _FEW and shared == size) or (size >= _MANY and 4 * shared >= 3 * size)


def _log_explanation(explanation: Explanation) -> None:
    """Log a line for the 1st, 2nd, 4th, 8th … program of one reason; warn from the 4th on."""
    if not explanation.is_recompilation:
        _log.debug("%s", explanation)
        return
    reason = (explanation.differences[0].kind, explanation.line)
    count = put_last(_reasons, reason, _reasons.get(reason, 0) + 1, _MOST_REASONS)
    if count & (count - 1):
        return
    if count < 4:
        _log.info("%s", explanation)
    else:
        advice = _advice(explanation.differences[0], "")
        _log.warning("%s\n  Such a reason came %d times at this line. %s", explanation, count, advice)


@contextmanager
def refused() -> Iterator[None]:
    """Refuse compilations within the block with the explanation, before anything of the program has run."""

    def refuse(event: events.Event) -> None:
        if isinstance(event, Compilation):
            raise CompilationRefused(_refusal(explain(event)))

    events.guard(refuse)
    try:
        yield
    finally:
        events.unguard(refuse)


def _advice(difference: Difference, otherwise: str) -> str:
    if difference.kind is Kind.INPUT and difference.text.startswith("dtype"):
        return "Convert the input to one dtype before the step."
    sizes = _CHANGED_SIZE.match(difference.text)
    if difference.kind is Kind.INPUT and sizes is not None:
        bucket = 1 << (max(map(int, sizes.groups())) - 1).bit_length()
        return (
            f"Pad inputs to a few sizes, such as {bucket} (torch_xla.experimental.buckets), "
            f"or drop the last, smaller batch."
        )
    return _ADVICE.get(difference.kind, otherwise)


def _refusal(explanation: Explanation) -> str:
    advice = _advice(explanation.differences[0], "Run it once before `no_recompile()`.")
    return (
        f"no_recompile() refuses to compile a program of {explanation.operations} operations for "
        f"{user_lines.text(explanation.started_by)}:\n"
        f"{describe(explanation.differences)}"
        f"{advice} Nothing was run: every tensor is as it was."
    )


def describe(found: Iterable[Difference]) -> str:
    """Return the differences with the whole path of each line."""
    return "".join(f"  {each.text}" + (f" ({user_lines.text(each.line)})\n" if each.line else "\n") for each in found)


def report() -> str:
    """Return all explanations as text: those with the same words once, with how often they came and what they cost."""
    rows: dict[str, list[Explanation]] = {}
    for explanation in _explanations:
        rows.setdefault(str(explanation), []).append(explanation)
    if not rows:
        return "Nothing was compiled.\n"
    total = sum(map(len, rows.values()))
    seconds = sum(each.seconds for each in _explanations)
    text = f"{total} compilation{'' if total == 1 else 's'}, {seconds:.2f} s\n"
    for row, same in rows.items():
        often = f"{len(same)} times, " if len(same) > 1 else ""
        once = f"; compiled once: {times(same[-1].shared)}" if same[-1].shared else ""
        text += f"  {row}  [{often}{sum(each.seconds for each in same):.2f} s{once}]\n"
    return text
