"""Measure the peak memory of training a workload, each contestant in a separate process.

    python -m benchmarks.memory [--workload gpt2_like] [--contestants eager,ours,replay] [--write docs/benchmarks.md]

Peaks of memory beyond what the process holds after it has trained a small MLP: of the steps after the first ones,
started without a wait, and of the whole run with its compilations. The median of three processes, because XLA frees a
program's intermediate values at a random time after its end. Linux only: `/proc` has the mark, and can reset it.

On the CPU the xla device keeps freed memory for the next step, as accelerators do. These numbers include it unless
`XLA_KEEP_HOST_MEMORY=0` is set, so contestants on xla are measured both ways. "donated" is the number of inputs of the
step's program that give their memory to its results, from the metric `InputOutputAliasCount`.
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

import torch_xla.debug.metrics as met
from benchmarks import page
from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.machine import confine
from benchmarks.models import WORKLOADS

WARM_UP_STEPS = 4
STEPS = 10
PROCESSES = 3
ON_XLA = ("ours", "openxla", "replay")
HEADING = "## Peak memory"


def resident(field: str) -> float:
    """The process's memory in MiB: "VmRSS" is now, "VmHWM" the highest since the mark was reset."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, f"/proc/self/status has no {field}"
    return int(found[1]) / 1024


def reset_high_water_mark() -> None:
    gc.collect()
    # Otherwise memory that the compiler has freed would count as memory of the steps.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def train(training: Contestant, steps: int) -> None:
    for _ in range(steps):
        training.step()
    training.wait()


def donated() -> float:
    """How many inputs the program compiled last gives away."""
    data = met.metric_data("InputOutputAliasCount")
    return data[2][-1][1] if data else 0.0


def measure(workload: str, contestant: str) -> dict[str, float]:
    """MiB of the whole run and of its steps."""
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
    return {"whole": whole, "steps": resident("VmHWM") - before, "donated": donated()}


def measure_apart(workload: str, contestants: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the results of `measure` by contestant; measure xla a second time without kept memory."""
    measured = {}
    for contestant in contestants:
        command = [sys.executable, "-m", "benchmarks.memory", "--workload", workload, "--alone", contestant]
        ways = {contestant: {}}
        if contestant in ON_XLA:
            ways[f"{contestant}, keeping none"] = {"XLA_KEEP_HOST_MEMORY": "0"}
        for title, settings in ways.items():
            found = []
            for _ in range(PROCESSES):
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **settings})
                found.append(json.loads(done.stdout))
            measured[title] = sorted(found, key=lambda each: each["steps"])[PROCESSES // 2]
    return measured


def table(workload: str, measured: dict[str, dict[str, float]]) -> str:
    """One row for each way."""
    rows = []
    for name, found in measured.items():
        ratio = found["steps"] / measured["eager"]["steps"]
        given = f"{found['donated']:.0f}" if found["donated"] else ""
        rows.append([name, f"{found['steps']:.0f}", f"{ratio:.2f}", f"{found['whole']:.0f}", given])
    return page.table(
        [WORKLOADS[workload].title, "steps, MiB", "/ eager", "whole run with compilation, MiB", "donated"], rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=WORKLOADS, default="gpt2_like")
    parser.add_argument("--contestants", default="eager,ours,replay,jax", help="eager must be among them")
    parser.add_argument("--alone", choices=CONTESTANTS, help="measure this one here, and print JSON")
    parser.add_argument("--write", type=Path, help="a Markdown file: the table becomes a section of it")
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(measure(args.workload, args.alone)))
        return
    text = table(args.workload, measure_apart(args.workload, args.contestants.split(",")))
    page.publish(args.write, HEADING, "memory", __doc__, text)


if __name__ == "__main__":
    main()
