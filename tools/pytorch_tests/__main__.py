"""The command: see `python -m tools.pytorch_tests --help`."""

import argparse
import re
import signal
import sys
import zlib
from pathlib import Path

from . import __doc__ as about
from .page import PAGE, page, summary
from .results import BAD, Results
from .runs import ROOT, Ending, NoAnswer, Worker, run

FILES = (
    "test_view_ops",
    "test_indexing",
    "test_type_promotion",
    "test_shape_ops",
    "test_scatter_gather_ops",
    "test_tensor_creation_ops",
    "test_torch",
    "test_autograd",
    "test_sort_and_select",
    "test_dlpack",
    "test_serialization",
    "test_reductions",
    "test_linalg",
    "test_optim",
    "test_nn",
    "test_modules",
)


def run_file(arguments: argparse.Namespace, name: str) -> Results:
    """Run the chosen tests of one file: on the CPU those without a known result, then the passing ones."""
    results = Results(arguments.results, name)
    where = "beside" if arguments.beside else "xla"
    cpu, again = results.devices["cpu"], results.devices[where]

    def report(test: str, ending: Ending) -> None:
        again[test] = ending
        if ending["outcome"] in BAD:
            message = str(ending["message"]).strip().replace("\n", " ")[:300]
            print(f"{name}.{test} {ending['outcome']} {ending['where']} {message}", flush=True)

    try:
        worker = None
        if not results.tests:
            worker = Worker.start(arguments.folder, name, "cpu")
            results.tests = worker.tests
        some = [test for test in results.tests if zlib.crc32((arguments.seed + test).encode()) % arguments.every == 0]
        some = [test for test in some if re.search(arguments.keyword, f"{name}.{test}")]
        run(arguments.folder, name, "cpu", [test for test in some if test not in cpu], 300, cpu.__setitem__, worker)
        results.keep()
        some = [test for test in some if cpu[test]["outcome"] == "passed"]
        if arguments.failed:
            some = [test for test in some if again.get(test, {}).get("outcome") in BAD]
        if arguments.missing:
            some = [test for test in some if test not in again]
        run(arguments.folder, name, where, [] if arguments.baseline else some, arguments.patience, report)
    except NoAnswer as error:
        print(f"{name}: {error}")
    finally:
        results.keep()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.pytorch_tests", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the `test` folder of PyTorch's sources")
    parser.add_argument(
        "files", nargs="*", default=FILES, help="test_view_ops and others; all of them if none is named"
    )
    parser.add_argument("-k", dest="keyword", default="", metavar="PATTERN", help="only tests whose name matches")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one test of N, chosen by its name")
    parser.add_argument("--seed", default="", metavar="TEXT", help="another text, other tests of N")
    parser.add_argument("--beside", action="store_true", help="on the CPU beside this package, instead of xla")
    parser.add_argument("--failed", action="store_true", help="only what failed on xla (beside) last time")
    parser.add_argument("--missing", action="store_true", help="only what was not yet run on xla (beside)")
    parser.add_argument("--baseline", action="store_true", help="on the CPU only")
    parser.add_argument("--patience", type=float, default=120, metavar="SECONDS", help="of processor time for a test")
    parser.add_argument("--results", type=Path, default=ROOT / "out" / "pytorch_tests", help="where results are kept")
    parser.add_argument("--write", action="store_true", help="run nothing: write the page from what was run")
    arguments = parser.parse_intermixed_args()
    arguments.folder = arguments.folder.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was run so far is kept
    if arguments.write:
        PAGE.write_text(page([Results(arguments.results, name) for name in arguments.files]))
        return 0
    for name in arguments.files:
        print(summary(run_file(arguments, name), "beside" if arguments.beside else "xla"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
