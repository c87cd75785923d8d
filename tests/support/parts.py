"""Programs for four virtual CPU devices, in a process of their own: each function of such a module is one part."""

import os
import subprocess
import sys
import traceback
from functools import cache
from pathlib import Path
from typing import Any

from tests.support import compiler

SUPPORT = Path(__file__).parent


@cache
def reports(module: str) -> dict[str, str]:
    """Return the report of each part of a module of tests/support: "ok", or its traceback. The program runs once."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PJRT_", "XLA_", "CPU_"))}
    environment["XLA_FLAGS"] = compiler.with_devices(4)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"tests.support.{module}"],
        capture_output=True,
        text=True,
        cwd=SUPPORT.parents[1],
        env=environment,
    )
    parts = dict(part.split("\n", 1) for part in done.stdout.split("### ")[1:])
    parts["the program ends well"] = "ok" if done.returncode == 0 else done.stderr
    return parts


def names(module: str) -> list[str]:
    """The parts of a module, and that it ends well."""
    lines = (SUPPORT / f"{module}.py").read_text().splitlines()
    found = [line[4:].partition("(")[0] for line in lines if line.startswith("def ") and not line.startswith("def _")]
    return [*found, "the program ends well"]


def check(module: str, name: str) -> None:
    """Fails as the part did."""
    report = reports(module).get(name, f"not reached\n{reports(module)['the program ends well']}")
    assert report.strip() == "ok", report


def run_all(found: dict[str, Any]) -> None:
    """Runs the parts among the names of a module that is run as a program, and prints what `reports` reads."""
    for name, part in list(found.items()):
        if callable(part) and getattr(part, "__module__", "") == found["__name__"] and not name.startswith("_"):
            print(f"### {name}")
            try:
                part()
                print("ok")
            except Exception:
                print(traceback.format_exc())
