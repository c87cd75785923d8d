"""Compile programs for TPUs and GPUs on a machine that has neither, and print which ones compile.

    python -m tests.devices                             all but the operators, for v5e and H100
    python -m tests.devices operators --on v5e --every 10 --dtype int64
    python -m tests.devices operators --on h100 --begin linalg.svd --together 1
    make test-devices ARGS="models --on v6e,h100"

It needs the compilers: `pip install 'torch_xla[plan-tpu,plan-cuda12]'`. The exit status is 1 if a case fails.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import dropwhile, islice

import torch

from tests.devices.case import Case
from tests.devices.operators import failures, operators
from tests.devices.parts import PARTS
from torch_xla import debug

# The topologies, by the number of devices.
TARGETS = {
    "v4": {1: "v4:1x1x1", 4: "v4:2x2x1", 16: "v4:2x2x4"},
    "v5e": {1: "v5e:1x1", 4: "v5e:2x2", 16: "v5e:4x4"},
    "v5p": {1: "v5p:1x1x1", 4: "v5p:2x2x1", 16: "v5p:2x2x4"},
    "v6e": {1: "v6e:1x1", 4: "v6e:2x2", 16: "v6e:4x4"},
    "a100": {1: "a100:1", 4: "a100:4", 16: "a100:16"},
    "h100": {1: "h100:1", 4: "h100:4", 16: "h100:16"},
}
USUAL = ("models", "kernels", "layers", "collectives", "replicas")
# Kernels of a TPU are no kernels of a GPU.
TPU_ONLY = {"kernels"}


def compiled(case: Case, target: str) -> str:
    """Return "" if the case compiles for a target and its plan is as it must be, else why not."""
    topology = TARGETS[target][case.devices]
    try:
        case.check(debug.plan(case.step, topology=topology, steps=case.steps, rank=case.rank))
    except Exception as error:  # a compiler may raise anything
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error).strip() else ''}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.devices", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], help="(default: all but operators)")
    parser.add_argument("--on", default="v5e,h100", help=f"some of {', '.join(TARGETS)} (default: v5e,h100)")
    parser.add_argument("--every", type=int, default=1, help="each how many-th case (default: every one)")
    parser.add_argument("--dtype", default="float32", help="of the operators' samples (default: float32)")
    parser.add_argument("--begin", default="", help="the first operator (default: the first of all)")
    parser.add_argument("--together", type=int, default=12, help="so many operators in a program (default: 12)")
    options = parser.parse_args(arguments)
    parts = {**PARTS, "operators": partial(operators, getattr(torch, options.dtype))}
    failed = 0
    for target in options.on.split(","):
        for part in options.parts or USUAL:
            if part in TPU_ONLY and not target.startswith("v"):
                continue
            start, count, wrong = time.perf_counter(), 0, 0
            cases, together = parts[part](), 1
            if part == "operators":
                cases = dropwhile(lambda case: case.name != (options.begin or case.name), cases)
                together = options.together
            cases = islice(cases, 0, None, options.every)
            for group in batched(cases, together):
                print(f"{target} {part}: {', '.join(case.name for case in group)}", file=sys.stderr, flush=True)
                count += len(group)
                for name, said in failures(group, partial(compiled, target=target)).items():
                    wrong += 1
                    print(f"  {name}: {said}", flush=True)
            seconds = time.perf_counter() - start
            print(f"{target:>5}  {part:<12} {count - wrong:>4} of {count} compile, {seconds:.0f} s", flush=True)
            failed += wrong or not count  # without a case, nothing is proven: no operator has that name
    return 1 if failed else 0


def batched(cases: Iterable[Case], size: int) -> Iterator[list[Case]]:
    """Yield the cases in lists of this size. (`itertools.batched` is newer than Python 3.11.)"""
    remaining = iter(cases)
    while batch := list(islice(remaining, size)):
        yield batch


if __name__ == "__main__":
    sys.exit(main())
