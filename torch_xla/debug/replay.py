"""Compute a captured step again with PyTorch on the CPU, and report where the device's results differ.

    python -m torch_xla.debug.replay step.pt

`torch_xla.debug.capture_step("step.pt")` makes such a file. Exit status: 0 if nothing differs, 1 if something does, 2
if the file is none.
"""

import argparse
import sys
from collections.abc import Sequence

from .steps import replay_step


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m torch_xla.debug.replay", description=__doc__.split("\n")[0])
    parser.add_argument("file", help="what torch_xla.debug.capture_step wrote")
    parser.add_argument("--tolerance", type=float, help="how far a result may be off, as a part of its largest element")
    options = parser.parse_args(arguments)
    try:
        found = replay_step(options.file, options.tolerance)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(found)
    return 0 if found.agrees else 1


if __name__ == "__main__":
    sys.exit(main())
