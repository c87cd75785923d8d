"""Measures steps on an NVIDIA GPU: PyTorch's CUDA build, eager and by inductor, the xla device, and JAX by hand.

    XLA_PYTHON_CLIENT_PREALLOCATE=false python -m benchmarks.gpu [--workloads gpt2,llama] [--modes training,inference]
                             [--dtypes bfloat16] [--rounds 3] [--write docs/benchmarks_gpu.md]

Steps are those of `benchmarks.run`, on models that fill a GPU; PyTorch's AdamW is its fused one. PyTorch's backward
engine knows one accelerator for each process, so PyTorch and xla are measured one after the other in processes of their
own, and a ratio is that of two medians.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks import machine, page
from benchmarks.models import OF_GPUS
from benchmarks.run import NAMES, cell, measure
from benchmarks.steps import Setting

SIDES = (("eager", "inductor"), ("ours", "compiled", "jax"))
COMPARED = (
    ("ours", "eager"),
    ("ours", "inductor"),
    ("compiled", "inductor"),
    ("ours", "jax"),
    ("compiled", "jax"),
)


def measured_apart(workload: str, side: tuple[str, ...], mode: str, dtype: str, rounds: int) -> dict[str, float]:
    """Milliseconds of a step by contestant, from a process of its own."""
    asked = json.dumps([workload, side, mode, dtype, rounds])
    command = [sys.executable, "-m", "benchmarks.gpu", "--one", asked]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_here(asked: str) -> None:
    """Prints what `measured_apart` reads."""
    workload, side, mode, dtype, rounds = json.loads(asked)
    measured = measure(OF_GPUS[workload], side, rounds, 0.0, Setting(mode, dtype))
    print(json.dumps({name: measured.step(name) for name in side}))


def table(results: dict[str, dict[str, float]]) -> str:
    """A row for each model."""
    names = [name for side in SIDES for name in side]
    header = ["model", *(f"{NAMES[name]}, ms" for name in names)]
    header += [f"{NAMES[one]} / {NAMES[other]}" for one, other in COMPARED]
    rows = [
        [title, *(cell(found[name], ".1f") for name in names)]
        + [cell(found[one] / found[other]) for one, other in COMPARED]
        for title, found in results.items()
    ]
    return page.table(header, rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="gpt2,llama", help=f"some of {', '.join(OF_GPUS)}")
    parser.add_argument("--modes", default="training,inference")
    parser.add_argument("--dtypes", default="bfloat16", help="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path, help="a Markdown file: each table becomes a section of it")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if machine.of_pytorch().type != "cuda" and not args.one:
        parser.error("this compares with PyTorch on CUDA: it needs an NVIDIA GPU and a build of PyTorch for it")
    return args


def main() -> None:
    args = arguments()
    if args.one:
        measure_here(args.one)
        return
    for mode in args.modes.split(","):
        for dtype in args.dtypes.split(","):
            results: dict[str, dict[str, float]] = {}
            for name in args.workloads.split(","):
                found = [measured_apart(name, side, mode, dtype, args.rounds) for side in SIDES]
                results[OF_GPUS[name].title] = {contestant: ms for side in found for contestant, ms in side.items()}
                text = table(results)
                print(f"## {mode.capitalize()}, {dtype}\n\n{text}\n", flush=True)
                if args.write:
                    call = f"python -m benchmarks.gpu --workloads {args.workloads} --modes {mode} --dtypes {dtype}"
                    told = f"`{call} --rounds {args.rounds}` on {machine.description()}."
                    page.put(args.write, f"## {mode.capitalize()}, {dtype}", f"{told}\n\n{text}")


if __name__ == "__main__":
    main()
