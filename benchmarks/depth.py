"""How compile time grows with the depth of a model: a GPT-2-like decoder with 1 to 48 layers, in stages and whole.

    python -m benchmarks.depth [--layers 1,6,12,24,48] [--mode training] [--rounds 3] [--write docs/benchmarks.md]

"In stages" compiles layers that repeat once, which is the default where it pays; "whole" forbids it
(`XLA_STAGE_OPERATIONS=0`); `openxla` is the model under `torch.compile`, also in stages. Compile seconds are those of
all programs up to the third step of a new process, without PyTorch's tracing. All kinds take turns.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine, page

HEADING = "## Compile time against depth"
LAYERS = (1, 6, 12, 24, 48)
FIRST_STEPS = 3
YARDSTICK = 6


WHOLE, STAGES, COMPILED = KINDS = ("whole", "stages", "openxla")


def measured_here(layers: int, mode: str, kind: str) -> dict[str, float]:
    """Compile seconds, and milliseconds of a step and of recording it, in this process."""
    from benchmarks.contestants import Compiles, OpenXla, Ours, Setting
    from benchmarks.models import WORKLOADS, Gpt2
    from benchmarks.run import timed, timed_recording

    machine.confine()
    workload = dataclasses.replace(WORKLOADS["gpt2_like"], build=lambda dropout: Gpt2(dropout, layers))
    ours = (OpenXla if kind == COMPILED else Ours)(workload, workload.dropout, Setting(mode=mode))
    ours.wait()
    before = Compiles.so_far()
    for _ in range(FIRST_STEPS):
        ours.step()
    ours.wait()
    compiling = (Compiles.so_far() - before).seconds
    steps = max(2, 24 // layers)
    return {
        "compiling": compiling,
        "step": min(timed(ours, steps) for _ in range(3)),
        "recording": timed_recording(ours, 5),
    }


def measured(layers: int, mode: str, kind: str) -> dict[str, float]:
    """The same in a process of its own."""
    environment = {**os.environ, "XLA_PERSISTENT_CACHE_PATH": ""}
    if kind == WHOLE:
        environment["XLA_STAGE_OPERATIONS"] = "0"
    command = [sys.executable, "-m", "benchmarks.depth", "--here", str(layers), "--mode", mode, "--kind", kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(layers: list[int], mode: str, rounds: int) -> str:
    """A row for each depth, medians of `rounds` processes of each kind."""
    found: dict[tuple[int, str], dict[str, float]] = {}
    for count in layers:
        turns: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                turns[kind].append(measured(count, mode, kind))
        for kind, each in turns.items():
            found[count, kind] = {name: median(turn[name] for turn in each) for name in each[0]}
    yardstick: Any = found.get((YARDSTICK, WHOLE))
    rows = []
    for count in layers:
        whole_program, stages = found[count, WHOLE], found[count, STAGES]
        rows.append(
            [
                f"{count}",
                f"{whole_program['compiling']:.2f}",
                f"{stages['compiling']:.2f}",
                f"{stages['compiling'] / yardstick['compiling']:.2f}" if yardstick else "",
                f"{whole_program['step']:.1f}",
                f"{stages['step']:.1f}",
                f"{stages['step'] / whole_program['step']:.2f}",
                f"{stages['recording']:.1f}",
                f"{found[count, COMPILED]['compiling']:.2f}",
            ]
        )
    header = ["layers", "compiling, whole, s", "in stages, s", "against 6 whole", "step, whole, ms", "in stages, ms"]
    return page.table([*header, "ratio", "recording, ms", "`openxla`, compiling, s"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default=",".join(map(str, LAYERS)))
    parser.add_argument("--mode", choices=("training", "inference", "both"), default="both")
    parser.add_argument("--kind", choices=KINDS, default=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--here", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help="a Markdown file: the tables become a section of it")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measured_here(args.here, args.mode, args.kind)))
        return
    modes = ["training", "inference"] if args.mode == "both" else [args.mode]
    layers = [int(each) for each in args.layers.split(",")]
    with machine.watched() as disturbance:
        parts = [f"### {mode.capitalize()}\n\n{table(layers, mode, args.rounds)}" for mode in modes]
    page.publish(args.write, HEADING, "depth", __doc__, *parts, disturbance=disturbance)


if __name__ == "__main__":
    main()
