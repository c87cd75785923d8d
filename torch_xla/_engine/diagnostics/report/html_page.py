"""The report as one HTML page that needs no network and no script."""

from collections.abc import Iterable
from html import escape

from ...metrics.report import format_size
from ..recompiles.causes import Explanation, short
from . import charts
from .contents import COMPILING, FALLBACK, RECORDING, WAITING, Report, about, steps_text, where

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; background: #fff; max-width: 1080px;
       margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p { margin: .3rem 0; } .quiet { color: #5b6875; }
svg { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; border-bottom: 1px solid #9aa7b3; padding: .25rem .6rem .25rem 0; }
td { border-bottom: 1px solid #e3e8ec; padding: .25rem .6rem .25rem 0; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.short { white-space: nowrap; } td.setting { color: #5b6875; width: 7rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; } pre { background: #f4f6f8; padding: .7rem; overflow-x: auto; }
.grid { stroke: #e3e8ec; } .label { font-size: 12px; fill: #5b6875; } .cut { font-size: 10px; fill: #c8443a; }
.area { fill: #4c78a833; } .curve { fill: none; stroke: #4c78a8; stroke-width: 1.5; }
.bar { display: inline-block; width: 90px; height: 9px; background: #eef1f4; vertical-align: middle; }
.bar span { display: block; height: 100%; }
.key span { display: inline-block; width: 11px; height: 11px; margin: 0 .3rem 0 .9rem; vertical-align: -1px; }
"""


def to_page(report: Report) -> str:
    """Return the whole page."""
    body = "".join(
        (
            "<h1>torch_xla report</h1>",
            f'<p class="quiet">The last {report.since:.1f} seconds of one process.</p>',
            _table(None, ([_cell(name, "setting"), _cell(value)] for name, value in report.setting)),
            _steps(report),
            _compilations(report),
            _waiting(report),
            _fallbacks(report),
            _memory(report),
            f"<h2>Metrics</h2><pre>{escape(report.metrics or 'none')}</pre>",
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>torch_xla report</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{body}</body></html>\n'
    )


def _cell(text: object, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(str(text))}</td>' if kind else f"<td>{escape(str(text))}</td>"


def _table(header: list[str] | None, rows: Iterable[list[str]]) -> str:
    """Return a table of finished cells; a header that begins with `#` is one of numbers."""
    head = "".join(
        f'<th class="number">{escape(name[1:])}</th>' if name.startswith("#") else f"<th>{escape(name)}</th>"
        for name in header or ()
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if header else ''}<tbody>{body}</tbody></table>"


def _steps(report: Report) -> str:
    if not report.steps:
        return '<h2>Steps</h2><p class="quiet">No step ended yet.</p>'
    key = "".join(
        f'<span style="background:{charts.COLOURS[kind]}"></span>{kind}{" and starting" if kind == RECORDING else ""}'
        for kind in (RECORDING, WAITING, FALLBACK, COMPILING)
    )
    return (
        f'<h2>Steps</h2><p class="key quiet">{key}</p>{charts.steps(report.steps)}'
        f"<pre>{escape(steps_text(report))}</pre>"
    )


def _compilations(report: Report) -> str:
    title = "<h2>Compilations: why</h2>"
    if not report.compilations:
        return title + '<p class="quiet">Nothing was compiled.</p>'
    groups: dict[str, list[Explanation]] = {}
    for explanation in report.compilations:
        groups.setdefault(str(explanation), []).append(explanation)
    longest = max(sum(each.seconds for each in group) for group in groups.values()) or 1.0
    rows = [
        [
            _cell(f"{sum(each.seconds for each in group):.2f}", "number"),
            f"<td>{charts.share_bar(sum(each.seconds for each in group) / longest, COMPILING)}</td>",
            _cell(len(group), "number"),
            _cell(group[0].operations, "number"),
            _cell(text),
            _cell(short(group[0].started_by), "short"),
        ]
        for text, group in groups.items()
    ]
    return title + _table(["#seconds", "", "#times", "#operations", "why", "started by"], rows)


def _waiting(report: Report) -> str:
    title = "<h2>Waiting: which lines asked the device</h2>"
    if not report.costs:
        return title + '<p class="quiet">The host waited for no value.</p>'
    longest = max(cost.seconds for cost in report.costs) or 1.0
    rows = [
        [
            _cell(f"{cost.seconds * 1e3:.1f}", "number"),
            f"<td>{charts.share_bar(cost.seconds / longest, WAITING)}</td>",
            _cell(cost.reads, "number"),
            _cell(cost.forced, "number"),
            _cell(f"{cost.compiling * 1e3:.1f}", "number"),
            f"<td>{escape(where(cost.line))}<br><code>{escape(cost.source)}</code></td>",
        ]
        for cost in report.costs[:30]
    ]
    return title + _table(["#ms", "", "#reads", "#forced", "#compiling, ms", "line"], rows)


def _fallbacks(report: Report) -> str:
    title = "<h2>Operators on the CPU</h2>"
    if not report.fallbacks:
        return title + '<p class="quiet">None: every operator ran on the device.</p>'
    rows = [
        [
            _cell(f"{cost.seconds * 1e3:.1f}", "number"),
            _cell(cost.count, "number"),
            f"<td><code>{escape(cost.operator)}</code></td>",
            _cell(", ".join(where(line) for line in list(cost.lines)[:4])),
        ]
        for cost in report.fallbacks
    ]
    return title + _table(["#ms", "#calls", "operator", "lines"], rows)


def _memory(report: Report) -> str:
    title = "<h2>Memory</h2>"
    picture = charts.memory(report.memory) if len(report.memory) > 1 else '<p class="quiet">No samples yet.</p>'
    if not report.holdings:
        return title + picture
    longest = max(holding.bytes for holding in report.holdings) or 1
    rows = [
        [
            _cell(format_size(holding.bytes), "number"),
            f"<td>{charts.share_bar(holding.bytes / longest, RECORDING)}</td>",
            _cell(holding.count, "number"),
            _cell(where(holding.line), "short"),
            _cell(about(holding)),
        ]
        for holding in report.holdings
    ]
    return title + picture + _table(["#size", "", "#buffers", "made by", "what"], rows)
