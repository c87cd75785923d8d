"""How soon a process has its first training step: with nothing compiled before, and with programs on disk.

    python -m benchmarks.second_process [--workloads encoder,gpt2_like] [--rounds 3] [--write docs/benchmarks.md]

Seconds from the first operation to the end of the first step and of the second, which is the same program, in a new
process each time. Imports are not included. "a step" is the lower bound: a step when everything is compiled.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks import machine, page
from benchmarks.models import WORKLOADS

STEPS = 5
HEADING = "## The second process"


def seconds_here(workload: str) -> dict[str, float]:
    """Seconds in this process: to the end of the first and of the second step, and of a step later."""
    from benchmarks.contestants import Ours

    importlib.import_module("torch._dynamo")  # PyTorch's optimizers import it, which takes longer than a warm start
    machine.confine()
    started = time.perf_counter()
    training = Ours(WORKLOADS[workload], WORKLOADS[workload].dropout)
    ends = []
    for _ in range(STEPS):
        training.step()
        training.wait()
        ends.append(time.perf_counter())
    return {
        "first": ends[0] - started,
        "second": ends[1] - started,
        "later": ends[-1] - ends[-2],
    }


def seconds_apart(workload: str, cache: str) -> dict[str, float]:
    """Return the results of `seconds_here` in a separate process, with executables kept in `cache`."""
    environment = {**os.environ, "XLA_PERSISTENT_CACHE_PATH": cache}
    command = [sys.executable, "-m", "benchmarks.second_process", "--here", workload]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def seconds_of_imports() -> float:
    """Seconds of a process that imports what a training program does."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch_xla, torch._dynamo"], check=True)
    return time.perf_counter() - started


def table(workloads: list[str], rounds: int) -> str:
    """One row for each workload."""
    rows = []
    for workload in workloads:
        cold, warm = [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as cache:
                cold.append(seconds_apart(workload, cache))
                warm.append(seconds_apart(workload, cache))
        row = [WORKLOADS[workload].title]
        for name in ("first", "second"):
            row += [f"{median(each[name] for each in runs):.2f}" for runs in (cold, warm)]
            row.append(f"{median(w[name] / c[name] for w, c in zip(warm, cold, strict=True)):.2f}")
        rows.append([*row, f"{median(each['later'] for each in warm):.2f}"])
    header = ["a process up to the end of", "step 1, nothing compiled, s", "programs on disk, s", "ratio"]
    header += ["step 2, nothing compiled, s", "programs on disk, s", "ratio", "a step, s"]
    imports = median(seconds_of_imports() for _ in range(rounds))
    return f"{page.table(header, rows)}\n\nImports take {imports:.1f} s besides, in every process."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="encoder,gpt2_like,resnet_like")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help="a Markdown file: the table becomes a section of it")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(seconds_here(args.here)))
        return
    with machine.watched() as disturbance:
        text = table(args.workloads.split(","), args.rounds)
    page.publish(args.write, HEADING, "second_process", __doc__, text, disturbance=disturbance)


if __name__ == "__main__":
    main()
