"""The contents of a report: a program's past as text, and as data for the HTML page."""

import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from ... import config
from ...metrics import user_lines
from ...metrics.events import Direction, Evaluation, Fallback, StepEnd, Transfer, Wait
from ...metrics.report import SHORT_COUNTERS, SHORT_METRICS, format_size, short_report
from ...metrics.user_lines import Line
from ...runtime import device_memory
from ...runtime.platform import is_started, local_devices
from ..memory.largest_values import Holding, holdings
from ..recompiles import causes
from ..recompiles.causes import Explanation, short
from ..waiting import wait_costs
from ..waiting.wait_costs import Cost
from . import history
from .history import FallbackCost

_PACKAGES = ("torch_xla", "torch", "jax", "jaxlib", "numpy")

# Uses of a step's time; of two at once the first in this list counts.
COMPILING, FALLBACK, WAITING, RECORDING = "compiling", "operators on the CPU", "waiting for values", "recording"


@dataclass(frozen=True, slots=True)
class StepShare:
    """One step, and the seconds in it by what they went to."""

    step: StepEnd
    seconds: dict[str, float]


@dataclass(slots=True)
class Report:
    """Everything that the text and the page show."""

    setting: list[tuple[str, str]] = field(default_factory=list)
    since: float = 0.0  # seconds that the history goes back
    steps: list[StepShare] = field(default_factory=list)
    compilations: list[Explanation] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    fallbacks: list[FallbackCost] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    holdings: list[Holding] = field(default_factory=list)
    metrics: str = ""


def collect() -> Report:
    """Return the report of the history so far."""
    explanations = causes.explained()
    if is_started() and history.is_kept():
        history.look_at_memory()
    return Report(
        setting=list(_setting()),
        since=time.perf_counter() - history.since(),
        steps=shares(history.steps(), _busy(explanations)),
        compilations=explanations,
        costs=wait_costs.costs(),
        fallbacks=sorted(history.fallbacks.values(), key=lambda cost: -cost.seconds),
        memory=list(history.memory_used),
        holdings=holdings() if is_started() else [],
        metrics=short_report(SHORT_COUNTERS, SHORT_METRICS),
    )


def _setting() -> Iterable[tuple[str, str]]:
    yield "versions", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    yield "system", f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if is_started():
        found = local_devices()
        yield "devices", f"{len(found)} × {found[0].device_kind} ({found[0].platform})"
        used = device_memory.usage(found[0])
        yield "memory", f"{format_size(used.used)} used of {format_size(used.limit)}, at most {format_size(used.peak)}"
    yield "settings", ", ".join(f"{name}={value}" for name, value in config.settings().items()) or "none"
    if not history.is_kept():
        yield "history", "not kept (XLA_HISTORY or keep_history(False)): what follows may be incomplete"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


Span = tuple[float, float, str]  # start, end, what


def _busy(explanations: Sequence[Explanation]) -> list[Span]:
    spans = [(each.start, each.start + each.seconds, COMPILING) for each in explanations]
    for event in history.recent:
        if isinstance(event, Fallback):
            spans.append((event.start, event.start + event.seconds, FALLBACK))
        elif isinstance(event, Transfer) and event.direction is Direction.FROM_DEVICE:
            spans.append((event.start - event.evaluating, event.start + event.seconds, WAITING))
        elif isinstance(event, Wait | Evaluation) and getattr(event, "asked", True):
            spans.append((event.start, event.start + event.seconds, WAITING))
    return sorted(spans)


def shares(steps: Sequence[StepEnd], spans: Sequence[Span]) -> list[StepShare]:
    """Return each step with the use of its seconds; `spans` are ordered by their start."""
    order = (COMPILING, FALLBACK, WAITING)
    result: list[StepShare] = []
    first = 0
    for step in steps:
        end = step.start + step.seconds
        while first < len(spans) and spans[first][1] < step.start:
            first += 1
        inside: list[Span] = []
        for span in spans[first:]:
            if span[0] >= end:
                break
            if span[1] > step.start:
                inside.append((max(span[0], step.start), min(span[1], end), span[2]))
        seconds = dict.fromkeys(order, 0.0)
        edges = sorted({edge for span in inside for edge in span[:2]})
        for left, right in zip(edges, edges[1:], strict=False):
            kinds = {span[2] for span in inside if span[0] <= left and span[1] >= right}
            chosen = next((kind for kind in order if kind in kinds), None)
            if chosen is not None:
                seconds[chosen] += right - left
        seconds[RECORDING] = step.seconds - sum(seconds.values())
        result.append(StepShare(step, seconds))
    return result


def to_text(report: Report) -> str:
    """Return the report as plain text."""
    parts = ["".join(f"{name + ':':<10} {value}\n" for name, value in report.setting)]
    parts.append(_section("Steps", steps_text(report)))
    parts.append(_section("Compilations", causes.report()))
    parts.append(_section("Waiting", wait_costs.report()))
    parts.append(_section("Operators on the CPU", _fallback_text(report.fallbacks)))
    parts.append(_section("Living buffers by the line that made them", _holdings_text(report.holdings)))
    parts.append(_section("Metrics", report.metrics or "none\n"))
    return "torch_xla report\n" + "\n".join(parts)


def _section(title: str, body: str) -> str:
    return f"== {title} ==\n{body}"


def steps_text(report: Report) -> str:
    """Number and time of the steps, and what it went to."""
    count = len(report.steps)
    if not count:
        return "No step ended yet.\n"
    times = sorted(share.step.seconds for share in report.steps)
    total = sum(times)
    text = (
        f"the last {count}, {total:.2f} s: median {times[count // 2] * 1e3:.2f} ms, "
        f"fastest {times[0] * 1e3:.2f} ms, slowest {times[-1] * 1e3:.2f} ms\n"
    )
    for kind in (RECORDING, WAITING, FALLBACK, COMPILING):
        seconds = sum(share.seconds[kind] for share in report.steps)
        text += f"  {seconds / total:6.1%}  {kind}{' and starting' if kind == RECORDING else ''}\n"
    return text


def where(line: Line | None) -> str:
    """Return a line as the report shows it: without the folder."""
    return "an unknown line" if line is None or line == user_lines.NOWHERE else f"{short(line)} in {line[2]}"


def _fallback_text(fallbacks: Sequence[FallbackCost]) -> str:
    if not fallbacks:
        return "none\n"
    text = f"  {'ms':>10} {'calls':>7}  operator\n"
    for cost in fallbacks:
        often = max(cost.lines, key=lambda line: cost.lines[line])
        text += f"  {cost.seconds * 1e3:10.1f} {cost.count:7}  {cost.operator} ({where(often)})\n"
    return text


def _holdings_text(found: Sequence[Holding]) -> str:
    if not found:
        return "none\n"
    text = f"  {'bytes':>10} {'buffers':>7}  line\n"
    for holding in found:
        text += f"  {format_size(holding.bytes):>10} {holding.count:7}  {where(holding.line)}: {about(holding)}\n"
    return text


def about(holding: Holding) -> str:
    """Return the largest of a line's buffers, and what the user calls some of them."""
    names = ", ".join(holding.names[:3]) + (" …" if len(holding.names) > 3 else "")
    return f"{'up to ' if holding.count > 1 else ''}{holding.shape}{f', such as {names}' if names else ''}"
