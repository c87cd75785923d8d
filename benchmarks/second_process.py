"""How soon a process has its first training step: with nothing compiled before, and with programs on disk.

    python -m benchmarks.second_process [--workloads encoder,gpt2_like] [--rounds 3] [--write docs/benchmarks.md]

The time is from the first operation to the end of the second step (the second is another program: the optimizer has
its state by then). Imports, which are the same for both, are not in it. Each process is a new one.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks import machine
from benchmarks.models import WORKLOADS

STEPS = 2
HEADING = "## The second process"


def seconds_here(workload: str) -> float:
    """Seconds of the first steps in this process."""
    from benchmarks.contestants import Ours

    machine.confine()
    importlib.import_module("torch._dynamo")  # PyTorch's optimizers import it, which takes longer than a warm start
    started = time.perf_counter()
    training = Ours(WORKLOADS[workload], WORKLOADS[workload].dropout)
    for _ in range(STEPS):
        training.step()
    training.wait()
    return time.perf_counter() - started


def seconds_apart(workload: str, cache: str) -> float:
    """Seconds of the first steps in a process of their own, with executables kept in `cache`."""
    environment = {**os.environ, "XLA_PERSISTENT_CACHE_PATH": cache}
    command = [sys.executable, "-m", "benchmarks.second_process", "--here", workload]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def table(workloads: list[str], rounds: int) -> str:
    lines = ["| first steps of a process | nothing compiled, s | programs on disk, s | ratio |", "|---|--:|--:|--:|"]
    for workload in workloads:
        cold, warm = [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as cache:
                cold.append(seconds_apart(workload, cache))
                warm.append(seconds_apart(workload, cache))
        ratio = median(w / c for w, c in zip(warm, cold, strict=True))
        lines.append(f"| {WORKLOADS[workload].title} | {median(cold):.2f} | {median(warm):.2f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="encoder,gpt2_like,resnet_like")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help="a Markdown file, to whose end the table goes")
    args = parser.parse_args()
    if args.here:
        print(seconds_here(args.here))
        return
    text = f"{HEADING}\n\n{table(args.workloads.split(','), args.rounds)}\n"
    print(f"{machine.description()}\n\n{text}")
    if args.write:
        before = args.write.read_text().partition(HEADING)[0].rstrip()
        args.write.write_text(f"{before}\n\n{text}")


if __name__ == "__main__":
    main()
