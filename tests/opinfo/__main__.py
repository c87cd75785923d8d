"""Checks PyTorch's operator database on `xla` against the CPU.

python -m tests.opinfo                              # every operator, every dtype: an hour or more
python -m tests.opinfo --dtypes float32 --only conv # some of it, every failure printed
python -m tests.opinfo --write out/opinfo.json      # the verdicts as JSON
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from . import ledger
from .check import Verdict
from .entries import DTYPES, entries
from .sweep import sweep


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="some of %(default)s")
    parser.add_argument("--only", default="", help="a regular expression for the operators' names")
    parser.add_argument("--samples", type=int, default=12, help="how many samples of an entry at most")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--patience", type=float, default=300, help="seconds for one entry")
    parser.add_argument("--write", type=Path, help="a JSON file for the verdicts")
    parser.add_argument("--update-ledger", action="store_true", help="write to the ledger what fails and what passes")
    parser.add_argument("--quiet", action="store_true", help="do not print each failure")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    chosen = list(entries(args.dtypes.split(","), args.only))
    verdicts: list[Verdict] = []
    started = time.perf_counter()
    with tqdm(total=len(chosen), unit="entry", smoothing=0.02) as bar:

        def report(verdict: Verdict) -> None:
            verdicts.append(verdict)
            bar.update()
            if verdict.failures and not args.quiet:
                for kind, text in verdict.failures[:3]:
                    bar.write(f"{verdict.entry}: {kind}: {text}")
            if verdict.fallbacks and not args.quiet:
                bar.write(f"{verdict.entry}: on the CPU: {', '.join(verdict.fallbacks)}")

        sweep(chosen, args.samples, args.jobs, args.patience, report)
    print(summary(verdicts, time.perf_counter() - started))
    if args.update_ledger:
        added, struck = ledger.update(verdicts)
        print(f"Ledger: {len(added)} added, {len(struck)} struck, {len(ledger.known())} in all.", *added, sep="\n  + ")
    if args.write:
        args.write.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {"operator": v.entry.operator, "dtype": v.entry.dtype, "samples": v.samples, "failures": v.failures,
             "fallbacks": v.fallbacks, "seconds": round(v.seconds, 2)}
            for v in sorted(verdicts, key=lambda v: v.entry)
        ]  # fmt: skip
        args.write.write_text(json.dumps(rows, indent=0))


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
            f"{native / len(some):.2%} native{'; ' + kinds if kinds else ''}"
        )
    samples = sum(v.samples for v in verdicts)
    lines.append(f"{samples} samples in {seconds:.0f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
