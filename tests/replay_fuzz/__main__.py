"""Calls random functions so many times, replayed, and tells where they do something else than on the CPU."""

import argparse
import sys
import warnings

import torch_xla
import torch_xla.debug.metrics as met

from .compose import CALLS, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    different = []
    seeds = range(arguments.seed, arguments.seed + -(-arguments.calls // CALLS))
    for seed in seeds:
        try:
            ours = run(seed, "xla", lambda function: torch_xla.compile(function, replay=True))
        except Exception as error:
            ours = [repr(error)]
        if ours != run(seed, "cpu", lambda function: function):
            different.append(seed)
            print(f"seed {seed} differs", flush=True)
    replayed = met.counter_value("ReplayedStep") or 0
    print(
        f"{len(seeds) * CALLS} calls, {replayed} of them replayed, {len(different)} functions differ: {different[:20]}"
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
