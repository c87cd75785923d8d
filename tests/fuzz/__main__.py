"""Runs random programs on `xla` and on the CPU, and prints every one that differs, as short as it can be.

python -m tests.fuzz                         # a thousand programs
python -m tests.fuzz --programs 100000       # a night's worth
python -m tests.fuzz --seed 1234 --programs 1 --show
"""

import argparse
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator

from tqdm import tqdm

from .work import check_programs, start

SEEDS_OF_A_TASK = 25


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the others follow")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--show", action="store_true", help="print the programs")
    return parser.parse_args()


def _tasks(first: int, count: int, show: bool) -> Iterator[tuple[range, bool]]:
    for seed in range(first, first + count, SEEDS_OF_A_TASK):
        yield range(seed, min(seed + SEEDS_OF_A_TASK, first + count)), show


def main() -> None:
    args = arguments()
    started = time.perf_counter()
    failures: list[tuple[int, str]] = []
    told: Counter[str] = Counter()
    os.environ["XLA_HISTORY"] = "0"  # nobody asks why the next program is another than the last
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
    context = multiprocessing.get_context("spawn")
    # A process is replaced now and then: what JAX and PyTorch keep of each operation adds up.
    with (
        context.Pool(args.jobs, start, maxtasksperchild=100) as pool,
        tqdm(total=args.programs, unit="program") as bar,
    ):
        for count, found in pool.imap_unordered(check_programs, _tasks(args.seed, args.programs, args.show)):
            bar.update(count)
            for seed, script in found:
                failures.append((seed, script))
                kind = script.rpartition("# ")[2][:60]
                told[kind] += 1
                if told[kind] <= 3:
                    bar.write(f"---- seed {seed}\n{script}")
    seconds = time.perf_counter() - started
    print(f"{args.programs} programs in {seconds:.0f} s, {len(failures)} differ: {[seed for seed, _ in failures][:50]}")


if __name__ == "__main__":
    main()
