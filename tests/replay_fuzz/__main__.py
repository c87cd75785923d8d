"""Call random functions repeatedly, compiled in some way, and report differences from the CPU."""

import argparse
import sys
import warnings

import torch_xla.debug.metrics as met

from .compose import CALLS, LONG, is_long
from .ways import WAYS, difference


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--how", choices=list(WAYS), default="replay")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    different, rounded = [], 0
    functions = calls = 0
    while calls < arguments.calls:
        seed = arguments.seed + functions
        functions += 1
        calls += LONG if is_long(seed) else CALLS
        found = difference(seed, arguments.how)
        if found is not None and found.is_rounding:
            rounded += 1
        elif found is not None:
            different.append(seed)
            print(f"seed {seed} differs: {found.expected} on the CPU, {found.ours} on the device", flush=True)
    replayed = met.counter_value("ReplayedStep") or 0
    print(
        f"{calls} calls of {functions} functions by {arguments.how}, {replayed} of them replayed; "
        f"{len(different)} functions differ: {different[:20]}, and {rounded} in the last bits of a number"
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
