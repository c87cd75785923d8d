"""`python -m tests.patches [NAME ...]`: leave out each patch by itself, and see its test fail; all without a name."""

import argparse
import os
import subprocess
import sys

from tests.patches import page
from tests.patches.at_start.sitecustomize import VARIABLE
from torch_xla._engine.compat.patch import ALL
from torch_xla._engine.compat.replaced_internals import REPLACED

ROOT = page.PAGE.parents[1]
AT_START = ROOT / "tests" / "patches" / "at_start"


def without(name: str, test: str) -> int:
    """Run a test in a process that lacks the patch, and return its exit status: 1 if the test has failed.

    A negative status is that of a crash.
    """
    path = os.pathsep.join([str(AT_START), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "", "-p", "no:cacheprovider", f"tests/{test}"]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, VARIABLE: name, "PYTHONPATH": path}, capture_output=True
    ).returncode


def main() -> int:
    """Print a line for each patch; 1 if a test passed without its patch."""
    tests = {patch.names[0]: patch.test for patch in ALL} | {each.function: each.test for each in REPLACED}
    parser = argparse.ArgumentParser(prog="python -m tests.patches", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="an attribute, or a function in compat/")
    parser.add_argument("--write", action="store_true", help="write docs/patches.md, and leave out nothing")
    options = parser.parse_args()
    if options.write:
        page.PAGE.write_text(page.text())
        return 0
    if unknown := set(options.names) - tests.keys():
        parser.error(f"not in the list of patches: {', '.join(sorted(unknown))}")
    passed = 0
    for name in options.names or tests:
        status = without(name, tests[name])
        said = {0: "PASSES without it", 1: "fails without it"}
        other = f"was not run: pytest ended with {status}" if status > 0 else "crashes without it"
        print(f"{name}: {tests[name]} {said.get(status, other)}", flush=True)
        passed += status >= 0 and status != 1
    return int(passed > 0)


if __name__ == "__main__":
    sys.exit(main())
