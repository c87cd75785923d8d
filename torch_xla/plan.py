"""Plan the steps of a script for a machine that is not here, without changing the script.

    python -m torch_xla.plan train.py --topology v5e:4x4
    python -m torch_xla.plan --topology h100:8 --steps 3 -m package.train --batch-size 64

What follows the script is the script's, except --topology and --steps where --topology does not come before it.

The script runs on this machine's CPU until it has ended that many steps (two: an optimizer makes its state in the
first); its programs are recorded and compiled for the topology, and do not run. A step ends at a sync, or, in a script
without one, where all its optimizers have made their updates; a script with neither runs to its end. The loss of a
large model is not known where the script reads it: it reads zeros, and the report says how often. What takes little
memory is computed on the CPU, since the script may decide by it. The report is that of `torch_xla.debug.plan`. It goes
to the standard output behind the output of the script.

Exit status: 0 if the steps fit into the memory of each device, 1 if they do not, 2 if no program was recorded.
"""

import argparse
import runpy
import sys
from collections.abc import Sequence

from ._engine import planning as _planning


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--topology", help="such as v5e:4x4, v5p:2x2x4, 2*v5e:4x4 or h100:8; it is required")
    own.add_argument("--steps", type=int, default=2, help="steps to plan (default: 2)")
    parser = argparse.ArgumentParser(
        prog="python -m torch_xla.plan", description=__doc__.split("\n")[0], parents=[own], allow_abbrev=False
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the script is a module")
    parser.add_argument("script", help="a file, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the script")
    options = parser.parse_args(arguments)
    if options.topology is None:
        _, options.arguments = own.parse_known_args(options.arguments, options)
    if options.topology is None:
        parser.error("the following arguments are required: --topology")
    run = runpy.run_module if options.module else runpy.run_path
    before = sys.argv
    sys.argv = [options.script, *options.arguments]
    try:
        found = _planning.plan_of_script(
            lambda: run(options.script, run_name="__main__"), options.steps, options.topology
        )
    finally:
        sys.argv = before
    print(found)
    if not found.plan.programs:
        return 2
    return 0 if found.plan.fits is not False else 1


if __name__ == "__main__":
    sys.exit(main())
