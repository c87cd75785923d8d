"""Measures the peak memory of training a workload, each contestant in a process of its own.

    python -m benchmarks.memory [--workload gpt2_like] [--contestants eager,ours]

Two numbers, both beyond what the process holds after it has trained a small MLP in the same way (so that libraries
which are loaded late, and the started device, do not count): the peak of the whole run, compilation included, and the
peak of the steps after the first ones, sent off without waiting for each. Linux only: the high-water mark is read
from and reset in `/proc`, because `ru_maxrss` starts at the parent's and cannot be reset.
"""

import argparse
import ctypes
import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.machine import confine
from benchmarks.models import WORKLOADS

WARM_UP_STEPS = 4
STEPS = 10


def resident(field: str) -> float:
    """The process's memory in MiB: "VmRSS" is now, "VmHWM" the highest since the mark was reset."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, f"/proc/self/status has no {field}"
    return int(found[1]) / 1024


def reset_high_water_mark() -> None:
    gc.collect()
    # What the compiler has freed would otherwise be counted as the steps'.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def train(training: Contestant, steps: int) -> None:
    for _ in range(steps):
        training.step()
    training.wait()


def measure(workload: str, contestant: str) -> dict[str, float]:
    confine()
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""  # compiling takes memory too
    train(CONTESTANTS[contestant](WORKLOADS["mlp"], 0.0), WARM_UP_STEPS)
    reset_high_water_mark()
    before = resident("VmRSS")
    training = CONTESTANTS[contestant](WORKLOADS[workload], WORKLOADS[workload].dropout)
    train(training, WARM_UP_STEPS)
    whole = resident("VmHWM") - before
    reset_high_water_mark()
    train(training, STEPS)
    return {"whole": whole, "steps": resident("VmHWM") - before}


def measure_apart(workload: str, contestants: Iterable[str]) -> dict[str, dict[str, float]]:
    """MiB of the whole run and of its steps, by contestant."""
    measured = {}
    for contestant in contestants:
        command = [sys.executable, "-m", "benchmarks.memory", "--workload", workload, "--alone", contestant]
        measured[contestant] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return measured


def table(workload: str, measured: dict[str, dict[str, float]]) -> str:
    eager = measured["eager"]
    lines = [
        f"| {WORKLOADS[workload].title} | steps, MiB | / eager | whole run with compilation, MiB |",
        "|---|--:|--:|--:|",
    ]
    for name, mebibytes in measured.items():
        ratio = mebibytes["steps"] / eager["steps"]
        lines.append(f"| {name} | {mebibytes['steps']:.0f} | {ratio:.2f} | {mebibytes['whole']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=WORKLOADS, default="gpt2_like")
    parser.add_argument("--contestants", default="eager,ours")
    parser.add_argument("--alone", choices=CONTESTANTS, help="measure this one here, and print JSON")
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(measure(args.workload, args.alone)))
    else:
        print(table(args.workload, measure_apart(args.workload, args.contestants.split(","))))


if __name__ == "__main__":
    main()
