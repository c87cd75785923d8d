"""Checks PyTorch's database of modules on `xla` against the CPU.

python -m tests.modules_db                            # every module class, every floating-point dtype: half an hour
python -m tests.modules_db --dtypes float32 --only LSTM
"""

import argparse
import sys

from tests.opinfo.report import sweep_and_report

from .check import check_module
from .entries import DTYPES, entries


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.modules_db", description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="some of %(default)s")
    parser.add_argument("--only", default="", help="a regular expression for the modules' names")
    parser.add_argument("--samples", type=int, default=12, help="how many inputs of a module at most, in each mode")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--patience", type=float, default=900, help="seconds for one entry")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    chosen = list(entries(args.dtypes.split(","), args.only))
    verdicts = sweep_and_report(chosen, args.samples, args.jobs, args.patience, check_module)
    return int(any(verdict.failures for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
