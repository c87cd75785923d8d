"""`python -m tests.interrupts --count 20000`: interrupts at random times in every program, and what became of them."""

import argparse
import random
import sys
import time

from tests.interrupts.check import interrupted
from tests.interrupts.programs import PROGRAMS


def main() -> int:
    """Runs the programs and prints a line for each; 1 if something was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="interrupts, over all programs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(PROGRAMS), help="one program")
    options = parser.parse_args()
    names = [options.only] if options.only else list(PROGRAMS)
    failed = False
    for nth, name in enumerate(names):
        start = time.perf_counter()
        count = options.count * (nth + 1) // len(names) - options.count * nth // len(names)
        found = interrupted(PROGRAMS[name], count, random.Random(options.seed + nth))
        failed = failed or bool(found.wrong or found.lost)
        print(f"{name:16} {found} in {time.perf_counter() - start:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
