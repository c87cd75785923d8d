"""Measures the host's part of training steps: models so narrow that the device has next to nothing to do.

    python -m benchmarks.host [--rounds 20] [--steps 20] [--write docs/benchmarks.md]

A step is forward, loss, zero_grad, backward and AdamW, on one sequence of eight tokens. Contestants take turns in one
process with one PyTorch thread, and wait at the end of each turn. "openxla" compiles the model and records the
optimizer. In the second table "recording" is the program's Python, PyTorch's dispatch and autograd, and our recording;
"starting" finds the program and starts it; "XLA" runs it; "host" is the time of the calling thread while the device is
idle.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import torch

import torch_xla
from benchmarks import machine, page
from benchmarks.contestants import Contestant, Eager, Jax, OpenXla, Ours, Replay, in_turns, ratio
from benchmarks.models import NARROW, Workload

HEADING = "## Host time of a step"

KINDS: dict[str, type[Contestant]] = {
    "eager": Eager,
    "recorded": Ours,
    "openxla": OpenXla,
    "replayed": Replay,
    "JAX": Jax,
}
RATIOS = (("recorded", "eager"), ("openxla", "eager"), ("replayed", "eager"), ("replayed", "JAX"))


def milliseconds(contestant: Contestant, steps: int) -> float:
    """Return the time of a step, of `steps` that follow each other."""
    contestant.wait()
    began = time.perf_counter()
    for _ in range(steps):
        contestant.step()
    contestant.wait()
    return (time.perf_counter() - began) / steps * 1e3


def settled(kind: type[Contestant], workload: Workload) -> Contestant:
    """Return a contestant whose next steps are all alike."""
    contestant = kind(workload, workload.dropout)  # type: ignore[call-arg]
    for _ in range(contestant.settles):
        contestant.step()
    contestant.wait()
    return contestant


def whole_steps(workload: Workload, rounds: int, steps: int) -> list[str]:
    """Return a row of the first table."""
    contestants = {name: settled(kind, workload) for name, kind in KINDS.items()}
    found = in_turns(contestants, lambda _, each: milliseconds(each, steps), rounds, workload.title)
    ratios = [f"{ratio(found, one, [other], min):.2f}" for one, other in RATIOS]
    return [workload.title, *(f"{median(found[name]):.2f}" for name in contestants), *ratios]


def host_milliseconds(contestant: Contestant, steps: int) -> float:
    """Return the calling thread's time for a step while the device is idle: the median of `steps`."""
    found = []
    for _ in range(steps):
        contestant.wait()
        began = time.thread_time()
        contestant.step()
        found.append((time.thread_time() - began) * 1e3)
    contestant.wait()
    return median(found)


def split(workload: Workload, steps: int) -> list[str]:
    """Return a row of the second table."""
    row = [workload.title]
    for kind in (Ours, OpenXla):
        contestant = settled(kind, workload)
        with torch_xla.debug.host_profile() as profile:
            for _ in range(steps):
                contestant.step()
        contestant.wait()
        row += [f"{seconds / steps * 1e3:.2f}" for seconds in (profile.recording, profile.starting, profile.busy)]
    return row + [f"{host_milliseconds(settled(kind, workload), steps):.2f}" for kind in (Replay, Jax)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--write", type=Path, help="a Markdown file: the tables become a section of it")
    args = parser.parse_args()
    machine.confine()
    torch.set_num_threads(1)
    with machine.watched() as disturbance:
        rows = [whole_steps(workload, args.rounds, args.steps) for workload in NARROW.values()]
        parts = [split(workload, args.steps) for workload in NARROW.values()]
    header = ["a whole step, ms", *KINDS, *(f"{one} / {other}" for one, other in RATIOS)]
    names = [f"{name}: {part}" for name in ("recorded", "openxla") for part in ("recording", "starting", "XLA")]
    names += ["replayed: host", "JAX: host"]
    tables = page.table(header, rows), page.table(["of a step, ms", *names], parts)
    page.publish(args.write, HEADING, "host", __doc__, *tables, disturbance=disturbance)


if __name__ == "__main__":
    main()
