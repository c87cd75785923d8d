"""A sweep with a progress bar and a summary: what the commands of the databases share. And sweeps written to files."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from .check import Verdict
from .entries import DTYPES, Entry
from .sweep import Check, sweep


def sweep_and_report(
    chosen: Sequence[Entry],
    most_samples: int,
    jobs: int,
    patience: float,
    check: Check | None = None,
    quiet: bool = False,
) -> list[Verdict]:
    """Checks `chosen`, prints what fails or runs on the CPU (not if `quiet`) and the summary; returns the verdicts."""
    verdicts: list[Verdict] = []
    started = time.perf_counter()
    with tqdm(total=len(chosen), unit="entry", smoothing=0.02) as bar:

        def report(verdict: Verdict) -> None:
            verdicts.append(verdict)
            bar.update()
            if quiet:
                return
            for kind, text in verdict.failures[:3]:
                bar.write(f"{verdict.entry}: {kind}: {text}")
            if verdict.fallbacks:
                bar.write(f"{verdict.entry}: on the CPU: {', '.join(verdict.fallbacks)}")

        sweep(chosen, most_samples, jobs, patience, report, check)
    print(summary(verdicts, time.perf_counter() - started))
    return verdicts


def summary(verdicts: list[Verdict], seconds: float) -> str:
    """A line for each dtype and one for all."""
    lines = []
    for dtype in (*DTYPES, None):
        some = [v for v in verdicts if dtype in (None, v.entry.dtype)]
        if not some:
            continue
        passing = sum(not v.failures for v in some)
        native = sum(not v.fallbacks for v in some)
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(v.status for v in some if v.failures).items())
        lines.append(
            f"{dtype or 'all':>10}: {len(some)} entries, {passing / len(some):.2%} correct, "
            f"{native / len(some):.2%} native, {_speed(some)}{'; ' + kinds if kinds else ''}"
        )
    samples = sum(v.samples for v in verdicts)
    lines.append(f"{samples} samples and {len(verdicts)} programs in {seconds:.0f} s")
    return "\n".join(lines)


def _speed(verdicts: list[Verdict]) -> str:
    samples, seconds = sum(v.samples for v in verdicts), sum(v.seconds for v in verdicts)
    return f"{samples} samples in {seconds:.0f} s of one process ({samples / max(seconds, 1e-9):.1f} a second)"


def write(verdicts: Sequence[Verdict], path: Path) -> None:
    """Writes verdicts as JSON, for `table`."""
    rows = [
        {"operator": v.entry.operator, "dtype": v.entry.dtype, "samples": v.samples, "failures": v.failures,
         "fallbacks": v.fallbacks, "seconds": round(v.seconds, 2)}
        for v in sorted(verdicts, key=lambda v: v.entry)
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=0))


def read(path: Path) -> dict[Entry, Verdict]:
    """The verdicts that `write` wrote."""
    verdicts = {}
    for row in json.loads(path.read_text()):
        entry = Entry(row["operator"], row["dtype"])
        failures = [(kind, text) for kind, text in row["failures"]]
        verdicts[entry] = Verdict(entry, row["samples"], failures, row["fallbacks"], row["seconds"])
    return verdicts


def table(paths: Sequence[Path]) -> str:
    """A row of Markdown for each dtype, and what failed. Of an entry that several files have, the first is the sweep.

    The last is its verdict after a repair.
    """
    first: dict[Entry, Verdict] = {}
    last: dict[Entry, Verdict] = {}
    for path in paths:
        verdicts = read(path)
        first = verdicts | first
        last |= verdicts
    lines = [
        "| dtype | entries | correct | after repairs | native | samples | samples a second |",
        "|---|" + "--:|" * 6,
    ]
    for dtype in DTYPES:
        some = [verdict for verdict in first.values() if verdict.entry.dtype == dtype]
        if some:
            shares = [
                sum(not v.failures for v in verdicts) / len(some)
                for verdicts in (some, [last[verdict.entry] for verdict in some])
            ] + [sum(not v.fallbacks for v in some) / len(some)]
            samples, seconds = sum(v.samples for v in some), sum(v.seconds for v in some)
            shown = " | ".join(f"{share:.2%}" for share in shares)
            lines.append(f"| {dtype} | {len(some)} | {shown} | {samples} | {samples / max(seconds, 1e-9):.1f} |")
    failed = [str(entry) for entry, verdict in first.items() if verdict.failures]
    still = [str(entry) for entry, verdict in last.items() if verdict.failures]
    lines += ["", f"Failed: {', '.join(sorted(failed)) or 'none'}.", f"Still: {', '.join(sorted(still)) or 'none'}."]
    return "\n".join(lines)
