"""Calls random functions so many times, replayed, and tells where they do something else than on the CPU."""

import argparse
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch_xla
import torch_xla.debug.metrics as met

from .compose import CALLS, LONG, is_long, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    different = []
    functions = calls = 0
    while calls < arguments.calls:
        seed = arguments.seed + functions
        functions += 1
        calls += LONG if is_long(seed) else CALLS
        ours = _outcome(seed, "xla", lambda function: torch_xla.compile(function, replay=True))
        if ours != _outcome(seed, "cpu", lambda function: function):
            different.append(seed)
            print(f"seed {seed} differs", flush=True)
    replayed = met.counter_value("ReplayedStep") or 0
    print(
        f"{calls} calls of {functions} functions, {replayed} of them replayed; "
        f"{len(different)} functions differ: {different[:20]}"
    )
    return 1 if different else 0


def _outcome(seed: int, device: str, compiled: Callable[[Any], Any]) -> list[Any]:
    try:
        return run(seed, device, compiled)
    except Exception as error:  # between two calls: the same on both
        return [type(error).__name__]


if __name__ == "__main__":
    sys.exit(main())
