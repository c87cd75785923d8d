"""Train the benchmarks' models with PyTorch/XLA 2.x, in its environment, with one answer for each line of input.

`benchmarks.former` starts this program, with a folder on the path that contains the benchmarks but not this
repository's package. It calls only functions that PyTorch/XLA 2.9 and this package both have.
"""

import json
import sys
import time
from functools import cache

import torch

import torch_xla
from benchmarks.models import WORKLOADS
from benchmarks.steps import USUAL, Steps

SETTLES = 6


def step(steps: Steps) -> None:
    """One step, which may still run afterwards; the loss lives until it is sent off."""
    loss = steps.step()
    torch_xla.sync()
    del loss


@cache
def training(name: str) -> Steps:
    """Return a model after the steps that differ from later ones."""
    torch_xla.manual_seed(0)
    steps = Steps(WORKLOADS[name], WORKLOADS[name].dropout, USUAL, torch.device("xla"))
    for _ in range(SETTLES):
        step(steps)
    torch_xla.sync(wait=True)
    return steps


def timed(name: str, count: int) -> float:
    """Milliseconds of a step, when `count` of them follow each other."""
    steps = training(name)
    step(steps)
    torch_xla.sync(wait=True)
    started = time.perf_counter()
    for _ in range(count):
        step(steps)
    torch_xla.sync(wait=True)
    return (time.perf_counter() - started) / count * 1e3


def losses(name: str, count: int) -> list[float]:
    """Of the first steps, without dropout."""
    steps = Steps(WORKLOADS[name], 0.0, USUAL, torch.device("xla"))
    return [steps.step().item() for _ in range(count)]


def main() -> None:
    """Says which releases these are, then answers line by line: `timed mlp 50`, `losses mlp 4`."""
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps([torch_xla.__version__, torch.__version__]), flush=True)
    for line in sys.stdin:
        asked, name, count = line.split()
        print(json.dumps({"timed": timed, "losses": losses}[asked](name, int(count))), flush=True)


if __name__ == "__main__":
    main()
