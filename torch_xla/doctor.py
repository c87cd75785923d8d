"""Check whether the `xla` device works here, and if not, explain why and what to do.

    python -m torch_xla.doctor           # a page for people
    python -m torch_xla.doctor --json    # the same for programs

The page shows versions, devices, the cost of a first step, plugins and settings. It names conflicts with their
remedies: another package that claimed PyTorch's only place for a backend, a GPU that JAX has no plugin for, a setting
that has no effect. The device is started in a separate process, so that a driver that hangs or crashes is reported too.

Exit status: 0 if all is well, 1 if something is probably not intended, 2 if the device does not work.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from ._engine.doctor import diagnosis as _diagnosis
from ._engine.doctor import environment_facts as _surroundings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m torch_xla.doctor", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--seconds",
        type=float,
        default=_surroundings.SECONDS,
        help=f"how long the device may take to start (default: {_surroundings.SECONDS})",
    )
    options = parser.parse_args(arguments)
    text, data = _diagnosis.diagnose(_surroundings.look(options.seconds))
    print(json.dumps(data, indent=2) if options.json else text, end="\n" if options.json else "")
    return int(data["status"])


if __name__ == "__main__":
    sys.exit(main())
