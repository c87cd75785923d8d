"""Let threads write to the same tensors in random ways, and report lost updates and torn reads."""

import argparse
import sys
import traceback
import warnings

from .work import Shared, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    wrong, actions = [], 0
    shared = Shared()
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        try:
            actions += run(seed, shared)
        except Exception:
            wrong.append(seed)
            print(f"seed {seed}:", flush=True)
            traceback.print_exc()
            shared = Shared()
    print(f"{actions} actions of threads; {len(wrong)} of {arguments.runs} runs were wrong: {wrong[:20]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
