"""Measure what exact arithmetic costs on the CPU: a training step's program with the optimization barriers and without.

    python -m benchmarks.barriers [--rounds 200] [--models encoder,resnet_like]

Barriers keep XLA from rewriting `log(exp(x))` into `x` and the like (`_engine/compile/rewrite_barriers.py`). Each
program that gets a barrier is compiled with them, without them, and with them once more. The three run in turns on the
same values, drawn at random. The second executable with barriers shows the noise: it does what the first one does.
"""

import argparse
import os
import time
from statistics import median
from typing import Any
from unittest import mock

# Executables on disk would not be compiled again.
os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""

import jax
import jax.numpy as jnp
from tqdm import tqdm

from benchmarks import machine, page
from benchmarks.contestants import Ours, Replay
from benchmarks.host import settled
from benchmarks.models import WORKLOADS, Workload
from torch_xla._engine.compile import program
from torch_xla._engine.compile.rewrite_barriers import keep_arithmetic
from torch_xla._engine.compile.stages import stage_executables

MODELS = ("encoder", "gpt2_like", "bert_like", "resnet_like")
SIDES = ("without", "with", "again")


def programs(workload: Workload) -> list[tuple[int, dict[str, Any]]]:
    """Return each program of recorded and replayed steps that gets barriers: how many, and its executables by side."""
    found = []
    compiled = program.compiled

    def compiled_thrice(lowered: Any, target: Any) -> Any:
        without = lowered.compile()
        barriers = keep_arithmetic(lowered.compiler_ir("stablehlo"))
        executable = compiled(lowered, target)
        if barriers:
            found.append((barriers, dict(zip(SIDES, (without, executable, lowered.compile()), strict=True))))
        return executable

    with (
        mock.patch.object(program, "compiled", compiled_thrice),
        mock.patch.object(stage_executables, "compiled", compiled_thrice),
    ):
        settled(Ours, workload)
        settled(Replay, workload)
    return found


def milliseconds(executable: Any, arrays: list[Any]) -> float:
    """Return the time of one run on copies of `arrays`: a program may take its arguments' memory for its results."""
    copies = [jnp.array(array, copy=True) for array in arrays]
    jax.block_until_ready(copies)
    began = time.perf_counter()
    jax.block_until_ready(executable(*copies))
    return (time.perf_counter() - began) * 1e3


def drawn(aval: Any, number: int) -> jax.Array:
    """Return an argument: small values of floats, zeros of other dtypes (indices, which are all in range so)."""
    if not jnp.issubdtype(aval.dtype, jnp.floating):
        return jnp.zeros(aval.shape, aval.dtype)
    return jax.random.uniform(jax.random.key(number), aval.shape, aval.dtype, 0.01, 0.1)


def row(workload: Workload, barriers: int, executables: dict[str, Any], rounds: int) -> list[str]:
    """Return a program's row: its barriers, milliseconds of a run, and the medians of the turns' ratios."""
    avals = jax.tree.leaves(executables["with"].in_avals)
    arrays = [drawn(aval, number) for number, aval in enumerate(avals)]
    found: dict[str, list[float]] = {name: [] for name in SIDES}
    for turn in tqdm(range(rounds + 5), desc=workload.title, leave=False, disable=None):
        for name in SIDES if turn % 2 else SIDES[::-1]:
            found[name].append(milliseconds(executables[name], arrays))
    kept = {name: times[5:] for name, times in found.items()}
    ratios = [
        median(a / b for a, b in zip(kept[one], kept[other], strict=True))
        for one, other in (("with", "without"), ("again", "without"), ("again", "with"))
    ]
    times = [f"{median(kept[name]):.2f}" for name in SIDES]
    return [workload.title, str(barriers), *times, *(f"{ratio:.3f}" for ratio in ratios)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--models", default=",".join(MODELS), help="names in benchmarks/models.py")
    arguments = parser.parse_args()
    machine.confine()
    jax.config.update("jax_enable_x64", True)
    header = ["a run, ms", "barriers", *SIDES, "with / without", "again / without", "again / with"]
    rows = []
    for name in arguments.models.split(","):
        workload = WORKLOADS[name]
        for barriers, executables in programs(workload):
            rows.append(row(workload, barriers, executables, arguments.rounds))
    print(machine.description())
    print(page.table(header, rows))


if __name__ == "__main__":
    main()
