"""Take a profile of a running program that has called `torch_xla.debug.profiler.start_server(port)`.

    python -m torch_xla.debug.capture_profile --service_addr localhost:9012 --logdir /tmp/profile --duration_ms 2000

`xprof /tmp/profile` (from `pip install xprof`) shows it.
"""

import argparse
import sys
from collections.abc import Sequence

from .profiler import trace


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 1 if there is no profile."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_xla.debug.capture_profile", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--service_addr", required=True, metavar="HOST:PORT", help="where the profiler server listens")
    parser.add_argument("--logdir", required=True, metavar="FOLDER", help="where the profile is written")
    parser.add_argument("--duration_ms", type=int, default=5000, help="how long the profile lasts (default: 5000)")
    parser.add_argument("--num_tracing_attempts", type=int, default=3, help="tries, if nothing happens (default: 3)")
    parser.add_argument("--host_tracer_level", type=int, default=2, help="0: off, to 3: everything (default: 2)")
    parser.add_argument("--device_tracer_level", type=int, default=1, help="0: off (default: 1)")
    parser.add_argument("--delay_ms", type=int, default=0, help="when the profile begins (default: 0, at once)")
    parser.add_argument("--timeout_s", type=int, default=120, help="how long to wait for a server (default: 120)")
    parser.add_argument("--interval_s", type=int, default=5, help="how often it is asked (default: 5)")
    try:
        trace(**vars(parser.parse_args(arguments)))
    except (ImportError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
