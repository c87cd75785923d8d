"""Checks PyTorch's operator database on `xla` against the CPU.

python -m tests.opinfo                              # every operator, every dtype: an hour or more
python -m tests.opinfo --dtypes float32 --only conv # some of it, every failure printed
python -m tests.opinfo --refusals                   # what is refused, with every dtype, as on the CPU
python -m tests.opinfo --write out/opinfo.json      # the verdicts as JSON
python -m tests.opinfo --zeros                      # the signs of zeros in results
python -m tests.opinfo --table out/*.json           # and what came of them as a table; a later file has the repairs

Fails if an entry does that is not in the ledger, or runs on the CPU without a decision.
"""

import argparse
import sys
from pathlib import Path

from torch_xla._engine.dispatch.cpu_fallback_list import ON_THE_CPU

from . import ledger
from .entries import DTYPES, entries
from .refusals import ALL_DTYPES, check_refusals, entries_of_all
from .report import sweep_and_report, table, write
from .zeros import check_zeros


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", help="some of the dtypes, such as float32,int64; by default all")
    parser.add_argument("--refusals", action="store_true", help="compare what is refused, and no values")
    parser.add_argument("--only", default="", help="a regular expression for the operators' names")
    parser.add_argument("--samples", type=int, default=12, help="how many samples of an entry at most")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--patience", type=float, default=300, help="seconds for one entry")
    parser.add_argument("--write", type=Path, help="a JSON file for the verdicts")
    parser.add_argument("--table", type=Path, nargs="+", help="print a table of files written before; check nothing")
    parser.add_argument("--zeros", action="store_true", help="compare the signs of zeros alone")
    parser.add_argument("--update-ledger", action="store_true", help="write to the ledger what fails and what passes")
    parser.add_argument("--quiet", action="store_true", help="do not print each failure")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.table:
        print(table(args.table))
        return 0
    dtypes = args.dtypes.split(",") if args.dtypes else list(ALL_DTYPES if args.refusals else DTYPES)
    chosen = list((entries_of_all if args.refusals else entries)(dtypes, args.only))
    if args.zeros:
        verdicts = sweep_and_report(chosen, args.samples, args.jobs, args.patience, check_zeros, args.quiet)
        return int(any(verdict.failures for verdict in verdicts))
    check = check_refusals if args.refusals else None
    verdicts = sweep_and_report(chosen, args.samples, args.jobs, args.patience, check, args.quiet)
    if args.update_ledger:
        added, struck = ledger.update(verdicts)
        print(f"Ledger: {len(added)} added, {len(struck)} struck, {len(ledger.known())} in all.", *added, sep="\n  + ")
    if args.write:
        write(verdicts, args.write)
    unexplained = [v for v in verdicts if v.failures and not ledger.is_known(v.entry)]
    undecided = [v for v in verdicts if set(v.fallbacks) - set(ON_THE_CPU)]
    return int(bool(unexplained or undecided))


if __name__ == "__main__":
    sys.exit(main())
