"""Times whole processes that compute next to nothing: imports, the first operations, and the end of the process.

    python -m benchmarks.whole_process [--rounds 9] [--write docs/benchmarks.md]

Seconds from the start of a process to its end, in turns, on one core: medians, and the medians of the ratios to eager
PyTorch in the same turn. The program draws a vector, doubles it, sums it and reads the sum. "programs on disk": another
process has compiled them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks import machine, page

HEADING = "## A whole process"

_EAGER = 'import torch\n(torch.randn(64, device="cpu") * 2).sum().item()'
_OURS = 'import torch\nimport torch_xla\n(torch.randn(64, device="xla") * 2).sum().item()'
_JAX = "import jax\nfrom jax import random\nfloat((random.normal(random.key(0), (64,)) * 2).sum())"
PROGRAMS = {
    "`import torch`": "import torch",
    "eager": _EAGER,
    "`import torch_xla`": "import torch_xla",
    "xla, nothing compiled": _OURS,
    "xla, programs on disk": _OURS,
    "JAX by hand": _JAX,
}


def seconds(program: str, cache: str) -> float:
    """Seconds of a process that runs `program`, with executables kept in the folder `cache`; "": nowhere."""
    environment = {**os.environ, "XLA_PERSISTENT_CACHE_PATH": cache}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    return time.perf_counter() - began


def table(rounds: int) -> str:
    """One row for each program."""
    found: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as cache:
        for program in PROGRAMS.values():
            seconds(program, cache)  # files that are read for the first time
        for _ in range(rounds):
            for name, program in PROGRAMS.items():
                found[name].append(seconds(program, cache if "on disk" in name else ""))
    rows = []
    for name, own in found.items():
        ratios = [one / other for one, other in zip(own, found["eager"], strict=True)]
        rows.append([name, f"{median(own):.2f}", f"{median(ratios):.2f}"])
    return page.table(["a process of", "s", "/ eager"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", type=Path, help="a Markdown file: the table becomes a section of it")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    with machine.watched() as disturbance:
        text = table(args.rounds)
    page.publish(args.write, HEADING, "whole_process", __doc__, text, disturbance=disturbance)


if __name__ == "__main__":
    main()
