"""Runs random programs on `xla` and on the CPU, and prints every one that differs, as short as it can be.

python -m tests.fuzz                          # a thousand programs
python -m tests.fuzz --programs 100000        # an hour or two
python -m tests.fuzz --compiled 1             # XLA compiles every program as a whole, by default one of 30
python -m tests.fuzz --seed 1234 --programs 1 --show
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator

from tqdm import tqdm

from .work import PROGRAMS_OF_A_SWARM, Found, check_programs, programs_of, start

COMPILED = 30
# JAX and PyTorch cache data for each operation, so a process is replaced after a number of swarms.
SHOWN = 2  # the number of failures of one kind to print
SWARMS_OF_A_PROCESS = 10


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the others follow")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument(
        "--compiled", type=int, default=COMPILED, metavar="N", help="XLA compiles one program of N as a whole; 0: none"
    )
    parser.add_argument("--show", action="store_true", help="print the programs")
    return parser.parse_args()


def _tasks(first: int, count: int, compiled: int) -> Iterator[tuple[range, int]]:
    seed, last = first, first + count
    while seed < last:
        following = min(last, (seed // PROGRAMS_OF_A_SWARM + 1) * PROGRAMS_OF_A_SWARM)
        yield range(seed, following), compiled
        seed = following


def main() -> int:
    args = arguments()
    if args.show:
        for seeds, _ in _tasks(args.seed, args.programs, 0):
            for _, program in programs_of(seeds):
                print("\n".join(line.text + (f"  # {line.raises}" if line.raises else "") for line in program.lines))
    started = time.perf_counter()
    whole = Found()
    told: Counter[str] = Counter()
    os.environ["XLA_HISTORY"] = "0"  # the reasons for compilations are not needed
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as programs,
        context.Pool(args.jobs, start, (programs,), maxtasksperchild=SWARMS_OF_A_PROCESS) as pool,
        tqdm(total=args.programs, unit="program", mininterval=5) as bar,
    ):
        try:
            for found in pool.imap_unordered(check_programs, _tasks(args.seed, args.programs, args.compiled)):
                bar.update(found.programs)
                whole.programs += found.programs
                whole.operations += found.operations
                whole.ways += found.ways
                whole.failures += found.failures
                for seed, failure in found.failures:
                    told[failure.kind] += 1
                    if told[failure.kind] <= SHOWN:
                        bar.write(f"---- seed {seed}\n{failure.script()}", sys.stdout)
        except KeyboardInterrupt:
            bar.write("interrupted: what follows is of the programs that were checked", sys.stdout)
    seconds = time.perf_counter() - started
    ways = ", ".join(f"{count} {way}" for way, count in sorted(whole.ways.items()))
    print(
        f"from seed {args.seed}: {whole.programs} programs ({ways}) of "
        f"{whole.operations} operations in {seconds:.0f} s, {whole.programs / seconds:.1f} programs/s, "
        f"{len(whole.failures)} differ: {sorted(seed for seed, _ in whole.failures)[:200]}"
    )
    return 1 if whole.failures else 0


if __name__ == "__main__":
    sys.exit(main())
