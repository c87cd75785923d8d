"""Run tests with several releases of PyTorch, Python and JAX, each in its own environment, and write the table.

    python3 tools/versions.py --torch 2.11.0 2.15.0                     # this interpreter's Python, the whole suite
    python3 tools/versions.py --python 3.12 3.13 -- tests/engine/view   # the pinned PyTorch, some of the tests
    python3 tools/versions.py --python 3.12 --jax 0.11.2 0.12.0         # releases of JAX, else the newest there is
    python3 tools/versions.py --slice --torch 2.12.0                    # the most informative tests, in some minutes
    python3 tools/versions.py --environment ~/torch-2.14/bin/python     # an environment that exists already
    python3 tools/versions.py --jobs 2 --torch 2.14.1                   # two processes share the tests

Environments are made and kept in `out/versions/`. Arguments after `--` are passed to pytest. Each run is a row of
`docs/versions.md`, and replaces an older row of the same releases and tests. A run of the whole suite replaces all
older rows of its releases.
"""

import argparse
import datetime
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from install import OLDEST, ROOT, TORCH

PAGE = ROOT / "docs" / "versions.md"
FOLDER = ROOT / "out" / "versions"
HEAD = "| Python | PyTorch | JAX | tests | result | day |\n| --- | --- | --- | --- | --- | --- |\n"
# The first things that a release breaks: private names, the README's program, refusals and their messages, composed
# operators, traced graphs.
SLICE = [
    "tests/engine/compat",
    "tests/house/test_readme.py",
    "tests/test_tiny.py",
    "tests/engine/dispatch/checks/test_scalar_ranges.py",
    "tests/engine/dispatch/test_call_planning.py",
    "tests/engine/dispatch/checks/test_cpu_errors.py",
    "tests/engine/dispatch/ops",
    "tests/engine/compiled/dynamo",
]
WHOLE = "all of `make test`"
RELEASES = "import jax, sys, torch; print('.'.join(map(str, sys.version_info[:3])), torch.__version__, jax.__version__)"


def interpreter(version: str) -> str | None:
    """Return an interpreter of that version: on the path, or among those of pyenv or uv."""
    if version == ".".join(map(str, sys.version_info[:2])):
        return sys.executable
    kept = [
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
        *Path.home().glob(f".local/share/uv/python/*-{version}.*/bin/python"),
    ]
    for candidate in [shutil.which(f"python{version}"), *map(str, kept)]:
        # One that pyenv puts on the path may only say that it is not chosen.
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


def installed(python: str, version: str, torch: str, jax: str) -> str | None:
    """Return the interpreter of an environment with these releases, made where it is missing; None if that fails."""
    folder = FOLDER / "-".join([f"python{version}", f"torch{torch}", *([f"jax{jax}"] if jax else [])])
    own = str(folder / "bin" / "python")
    commands = [[python, str(ROOT / "tools" / "install.py"), str(folder), "test,docs", torch]]
    if jax:
        commands.append([own, "-m", "pip", "install", f"jax=={jax}"])
    return None if any(subprocess.run(each, cwd=ROOT).returncode for each in commands) else own


def outcome(own: str, asked: tuple[str, str, str], tests: list[str]) -> tuple[str, str, str, str]:
    """Run the tests with the interpreter `own`; return its releases of Python, PyTorch and JAX, and pytest's last line.

    `asked` stands for the releases where the packages cannot be imported.
    """
    releases = subprocess.run([own, "-W", "ignore", "-c", RELEASES], cwd=ROOT, capture_output=True, text=True)
    if releases.returncode:
        return *asked, f"does not import: {releases.stderr.splitlines()[-1]}"
    said = []
    with subprocess.Popen([own, "-m", "pytest", *tests], cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            said.append(line)
    last = re.findall(r"^=* ?((?:\d+ \w+,? ?)+)in [\d.]+s.*$", "".join(said), re.MULTILINE)
    python, torch, jax = releases.stdout.split()
    return python, torch, jax, last[-1].strip() if last else f"pytest ended with {running.returncode}"


def with_row(page: str, row: tuple[str, ...]) -> str:
    """Return the page with `row` in its table, which replaces outdated rows."""
    before, _, rows = page.partition(HEAD)
    line = f"| {' | '.join(row)} |"
    compared = 3 if row[3] == WHOLE else 4
    kept = [each for each in rows.splitlines() if each.split(" | ")[:compared] != line.split(" | ")[:compared]]
    return before + HEAD + "\n".join(sorted([*kept, line])) + "\n"


def environments(chosen: argparse.Namespace) -> Iterator[tuple[str | None, tuple[str, str, str]]]:
    """Yield the interpreter of each chosen environment, None where there is none, with the releases asked for."""
    for own in chosen.environment:
        yield own, ("?", "?", "?")
    if chosen.environment:
        return
    for version in chosen.python:
        python = interpreter(version)
        if python is None:
            print(f"No interpreter of Python {version} is installed here.", flush=True)
            yield None, (version, "?", "?")
            continue
        for torch, jax in itertools.product(chosen.torch, chosen.jax):
            yield installed(python, version, torch, jax), (version, torch, jax)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[".".join(map(str, sys.version_info[:2]))], metavar="3.x")
    parser.add_argument("--torch", nargs="+", default=[TORCH], metavar="2.x.y")
    parser.add_argument("--jax", nargs="+", default=[""], metavar="0.x.y")
    parser.add_argument("--environment", nargs="+", default=[], metavar="PYTHON", help="interpreters of environments")
    parser.add_argument("--slice", action="store_true", help="run the tests of the slice that this file names")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many processes run the tests")
    parser.add_argument("tests", nargs="*", help="arguments for pytest, after --")
    chosen = parser.parse_args()
    if too_old := [each for each in chosen.python if tuple(map(int, each.split("."))) < OLDEST]:
        parser.error(f"Python {'.'.join(map(str, OLDEST))} or newer is needed, not {too_old[0]}")
    shared = ["-n", str(chosen.jobs), "--dist", "loadfile"] if chosen.jobs > 1 else []
    arguments = [*shared, *chosen.tests, *(SLICE if chosen.slice else [])]
    what = " ".join([*chosen.tests, *(["the slice"] if chosen.slice else [])]).replace("|", "/") or WHOLE
    failed = False
    for own, asked in environments(chosen):
        if own is None:
            print(f"There is no environment of Python {asked[0]}, PyTorch {asked[1]}, JAX {asked[2]}.", flush=True)
            failed = True
            continue
        *releases, result = outcome(own, asked, arguments)
        row = (*releases, what, result, datetime.date.today().isoformat())
        PAGE.write_text(with_row(PAGE.read_text(), row))
        failed |= re.fullmatch(r"\d+ passed(, \d+ (skipped|deselected|xfailed))*", result) is None
    sys.exit(failed)


if __name__ == "__main__":
    main()
