"""Charts of the report as SVG: steps as stacked bars, and memory over time."""

from collections.abc import Sequence
from html import escape

from ...metrics.report import format_size
from .contents import COMPILING, FALLBACK, RECORDING, WAITING, StepShare

# Colours that colour-blind readers distinguish, and print shows.
COLOURS = {RECORDING: "#4c78a8", WAITING: "#f2a541", FALLBACK: "#8a6fb0", COMPILING: "#c8443a"}

_WIDTH, _HEIGHT = 1000, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 10, 18, 26
_MOST_BARS = 200
_LABEL = 34  # the room a label needs
_TALLEST = 4.0  # times the median; a taller bar is cut off and says how long it is


def svg(body: str, label: str) -> str:
    """Return a drawing of the common size, with a text for those who do not see it."""
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def steps(shares: Sequence[StepShare]) -> str:
    """Return a bar for each of the last steps, its height the milliseconds, its colours what they went to."""
    shown = shares[-_MOST_BARS:]
    ordered = sorted(share.step.seconds for share in shown)
    top = min(ordered[-1], _TALLEST * ordered[len(ordered) // 2]) or 1e-9
    width = (_WIDTH - _LEFT - _RIGHT) / max(len(shown), 20)
    body = _axis(top * 1e3, "ms")
    labelled = 0.0
    for index, share in enumerate(shown):
        x = _LEFT + index * width
        has_room = x - labelled > _LABEL
        body += _bar(share, x, width, top, has_room)
        if has_room and share.step.seconds > top:
            labelled = x
    first, last = shown[0].step.number, shown[-1].step.number
    middle = _LEFT + width * len(shown) / 2
    body += (
        f'<text x="{middle:.0f}" y="{_HEIGHT - 6}" class="label" text-anchor="middle">steps {first} to {last}</text>'
    )
    return svg(body, "milliseconds of each step by what they went to")


def _bar(share: StepShare, x: float, width: float, top: float, has_room: bool) -> str:
    scale = (_HEIGHT - _TOP - _BOTTOM) / top
    parts = ", ".join(f"{kind} {seconds * 1e3:.2f} ms" for kind, seconds in share.seconds.items() if seconds > 0)
    body = f"<g><title>step {share.step.number}: {share.step.seconds * 1e3:.2f} ms ({escape(parts)})</title>"
    y = float(_HEIGHT - _BOTTOM)
    shrink = min(1.0, top / share.step.seconds) if share.step.seconds else 1.0
    for kind in (RECORDING, WAITING, FALLBACK, COMPILING):
        height = max(0.0, share.seconds[kind]) * scale * shrink
        y -= height
        gap = min(1.0, width * 0.15)
        body += (
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width - gap:.2f}" height="{height:.2f}" fill="{COLOURS[kind]}"/>'
        )
    if share.step.seconds > top:
        body += f'<path d="M{x:.1f} {_TOP + 5} l{width:.1f} -5 v3 l-{width:.1f} 5 z" fill="white"/>'
    if share.step.seconds > top and has_room:
        body += f'<text x="{x + width / 2:.1f}" y="{_TOP - 5}" class="cut" text-anchor="middle">{_time(share)}</text>'
    return body + "</g>"


def _time(share: StepShare) -> str:
    seconds = share.step.seconds
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def _axis(top: float, unit: str) -> str:
    body = ""
    for part in (0.0, 0.5, 1.0):
        y = _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)
        value = format_size(top * part) if unit == "B" else f"{top * part:.3g} {unit}"
        body += f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        body += f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="label" text-anchor="end">{value}</text>'
    return body


def memory(samples: Sequence[tuple[float, int]]) -> str:
    """Draw the bytes in use on the first device, over time."""
    start, end = samples[0][0], samples[-1][0]
    top = max(used for _, used in samples) or 1
    span = (end - start) or 1.0
    points = [
        (
            _LEFT + (_WIDTH - _LEFT - _RIGHT) * (when - start) / span,
            _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * used / top,
        )
        for when, used in samples
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    base = _HEIGHT - _BOTTOM
    body = _axis(float(top), "B")
    body += f'<polygon points="{points[0][0]:.1f},{base} {line} {points[-1][0]:.1f},{base}" class="area"/>'
    body += f'<polyline points="{line}" class="curve"/>'
    middle = (_LEFT + _WIDTH) / 2
    body += f'<text x="{middle:.0f}" y="{_HEIGHT - 6}" class="label" text-anchor="middle">over {span:.1f} s</text>'
    return svg(body, f"memory over time, at most {format_size(top)}")


def share_bar(share: float, kind: str) -> str:
    """Return a small bar for a cell of a table; `share` is from 0 to 1."""
    width = max(0.0, min(1.0, share)) * 100
    return f'<span class="bar"><span style="width:{width:.1f}%;background:{COLOURS[kind]}"></span></span>'
