"""Measures what the host pays for one operation: PyTorch on the CPU, the xla device, and an idle `mark_step`.

    python -m benchmarks.dispatch [--blocks 30]

Microseconds a call: the median over blocks of a few hundred calls. On the xla device an operation is only recorded;
between two blocks the device runs what it was given, outside the measured time.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

import torch_xla
import torch_xla.core.xla_model as xm
from benchmarks import machine

CALLS = 200


def microseconds(call: Callable[[], object], blocks: int) -> float:
    times = []
    for _ in range(blocks):
        torch_xla.sync(wait=True)
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - started) / CALLS * 1e6)
    torch_xla.sync(wait=True)
    return median(times)


def calls(device: str) -> dict[str, Callable[[], object]]:
    a: Tensor = torch.ones(8, 8, device=device)
    b: Tensor = torch.ones(8, 8, device=device)
    leaf = torch.ones(8, 8, device=device, requires_grad=True)
    return {
        "`a + b`": lambda: a + b,
        "`a + b`, recorded by autograd": lambda: leaf + b,
        "`a * 2.0`": lambda: a * 2.0,
        "`a @ b`": lambda: a @ b,
        "`a.transpose(0, 1)` (a view)": lambda: a.transpose(0, 1),
        "`a.add_(b)` (in place)": lambda: a.add_(b),
        "`a[0].add_(1)` (through a view)": lambda: a[0].add_(1),
        "`torch.zeros(8, 8)` (a factory)": lambda: torch.zeros(8, 8, device=device),
        "`torch.rand(8, 8)`": lambda: torch.rand(8, 8, device=device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=30)
    args = parser.parse_args()
    machine.confine()
    print(f"{machine.description()}\n")
    print("| µs a call | CPU | xla |\n|---|--:|--:|")
    on_cpu, on_xla = calls("cpu"), calls("xla")
    for name, call in on_cpu.items():
        print(f"| {name} | {microseconds(call, args.blocks):.2f} | {microseconds(on_xla[name], args.blocks):.2f} |")
    print(f"| `xm.mark_step()` with nothing recorded | | {microseconds(xm.mark_step, args.blocks):.2f} |")


if __name__ == "__main__":
    main()
