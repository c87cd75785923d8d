"""Measure what planning a step costs on this machine, by the number of devices that it is planned for.

    python -m benchmarks.planned_devices [--counts 1,8,256,1024,8192] [--layers 4] [--write docs/benchmarks.md]
    python -m benchmarks.planned_devices --topologies v5p:1x1x1,v5p:2x2x1,v5p:8x8x4,v5p:8x8x16,v5p:16x16x32

For each number a process of its own plans five steps of an MLP with AdamW, its parameters divided over virtual devices
(FSDP) and a batch of as many rows as the largest number; for each topology over its devices, by the TPU's compiler. By
processor time, "recording" is that of the fastest step, and "plan" that of everything: recording, keys, lowering,
compiling by XLA, and reading the compiled programs. By the clock, "compiling" is the part of lowering and XLA, and
"besides" all but that. "Memory" is the most that the process had. One device divides nothing, so its program has no
collectives. Virtual devices are those of one process; `many_processes` measures what several say to each other.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import torch_xla.debug
import torch_xla.distributed.spmd as xs
from benchmarks import machine, page
from torch_xla._engine.runtime.topologies import devices_of, named

HEADINGS = {"counts": "## Plans of many devices", "topologies": "## Plans of many TPUs"}
WIDTH, LARGEST = 1024, 8192


class Training:
    """Makes an MLP in the first call, divided over the devices, and trains it in the others."""

    def __init__(self, devices: int, layers: int) -> None:
        self.mesh = xs.Mesh(np.arange(devices), (devices,), ("fsdp",)) if devices > 1 else None
        self.layers, self.recording = layers, math.inf
        self.model: nn.Module | None = None

    def __call__(self) -> None:
        """One step."""
        if self.model is None:
            with torch.device("xla"):
                pairs = [(nn.Linear(WIDTH, LARGEST), nn.GELU(), nn.Linear(LARGEST, WIDTH)) for _ in range(self.layers)]
                self.model = nn.Sequential(*(layer for pair in pairs for layer in pair))
            for each in self.model.parameters():
                self.divide(each)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
            return
        begun = time.process_time()
        x = torch.ones(LARGEST, WIDTH, device="xla")
        self.divide(x)
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.recording = min(self.recording, time.process_time() - begun)

    def divide(self, tensor: torch.Tensor) -> None:
        """Divide the rows of a tensor over the devices."""
        if self.mesh is not None:
            xs.mark_sharding(tensor, self.mesh, ("fsdp",) + (None,) * (tensor.dim() - 1))


def alone(name: str, layers: int) -> dict[str, float]:
    """Plan in this process, for a number of virtual devices or for the devices of a topology."""
    where: dict[str, Any] = {"devices": int(name)} if name.isdigit() else {"topology": name}
    devices = int(name) if name.isdigit() else len(devices_of(named(name)))
    training = Training(devices, layers)
    begun, started = time.process_time(), time.perf_counter()
    plan = torch_xla.debug.plan(training, steps=5, **where)
    used, passed = time.process_time() - begun, time.perf_counter() - started
    compiling = sum(program.compile_seconds for program in plan.programs)
    return {
        "devices": devices, "recording": training.recording, "plan": used, "compiling": compiling,
        "besides": passed - compiling, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "collectives": sum(each.count for each in plan.programs[-1].work.collectives),
    }  # fmt: skip


def row(name: str, found: dict[str, float], first: dict[str, float]) -> list[str]:
    """Return a line of the table: what was found, and its ratios to the first."""
    against = {each: f"{found[each] / first[each]:.2f}" for each in ("recording", "plan", "memory")}
    return [
        *([] if name.isdigit() else [name]), f"{int(found['devices']):,}",
        f"{found['recording'] * 1e3:.1f} ms", against["recording"], f"{found['plan']:.1f} s", against["plan"],
        f"{found['compiling']:.1f} s", f"{found['besides']:.1f} s", f"{found['memory']:.0f} MiB", against["memory"],
        f"{found['collectives']:.0f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="1,8,256,1024,8192")
    parser.add_argument("--topologies", default="")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--alone", default="", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(alone(given.alone, given.layers)))
        return
    machine.confine()
    rows: list[list[str]] = []
    first: dict[str, float] = {}
    with machine.watched() as disturbance:
        for name in (given.topologies or given.counts).split(","):
            command = [sys.executable, "-m", "benchmarks.planned_devices", "--layers", str(given.layers)]
            done = subprocess.run([*command, "--alone", name], check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(done.stdout)
            first = first or found
            rows.append(row(name, found, first))
    figures = ["recording", "/ first", "plan", "/ first", "compiling", "besides", "memory", "/ first", "collectives"]
    header = [*(["topology"] if given.topologies else []), "devices", *figures]
    heading = HEADINGS["topologies" if given.topologies else "counts"]
    page.publish(given.write, heading, "planned_devices", __doc__, page.table(header, rows), disturbance=disturbance)


if __name__ == "__main__":
    main()
