"""Checks PyTorch's database of modules on `xla` against the CPU.

python -m tests.modules_db                            # every module class, every floating-point dtype: half an hour
python -m tests.modules_db --dtypes float32 --only LSTM
"""

import argparse
import sys
import time

from tqdm import tqdm

from tests.opinfo.__main__ import summary
from tests.opinfo.check import Verdict
from tests.opinfo.sweep import sweep

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
    verdicts: list[Verdict] = []
    started = time.perf_counter()
    with tqdm(total=len(chosen), unit="entry", smoothing=0.02) as bar:

        def report(verdict: Verdict) -> None:
            verdicts.append(verdict)
            bar.update()
            for kind, text in verdict.failures[:3]:
                bar.write(f"{verdict.entry}: {kind}: {text}")
            if verdict.fallbacks:
                bar.write(f"{verdict.entry}: on the CPU: {', '.join(verdict.fallbacks)}")

        sweep(chosen, args.samples, args.jobs, args.patience, report, check_module)
    print(summary(verdicts, time.perf_counter() - started))
    return int(any(verdict.failures for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
