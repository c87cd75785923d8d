"""Trains the same on the xla device and on the CPU, and says how they differ. Every example here uses it."""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import torch

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr

SETTLED = 3  # every later step must find its programs compiled


def _programs() -> int:
    return met.counter_value("UncachedCompile") or 0


class Steps:
    """The losses of a training, and what had been compiled when each step ended."""

    def __init__(self) -> None:
        self._losses: list[torch.Tensor | float] = []
        self._compiles: list[int] = []
        self._apart = 0

    def ended(self, loss: torch.Tensor | float) -> None:
        """Record a step; a loss that is a tensor is read after the training, so that the step does not wait for it."""
        self._losses.append(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        self._compiles.append(_programs() - self._apart)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """For an evaluation between steps: what compiles in it is no step's."""
        before = _programs()
        yield
        self._apart += _programs() - before

    def losses(self) -> list[float]:
        return [float(loss) for loss in self._losses]

    def compiled(self) -> list[int]:
        """How many programs each step but the first compiled."""
        return [after - before for before, after in pairwise(self._compiles)]


Training = Callable[[str, Steps], dict[str, float] | None]
# Losses, other numbers, programs compiled by each step, operators that ran on the CPU.
Outcome = tuple[list[float], dict[str, float], list[int], list[str]]
Allowed = Callable[[str], float]
# Calls a function with its arguments in each of several processes, perhaps after arguments that identify the process.
Start = Callable[[Callable[..., None], tuple[Any, ...]], Any]


def _run(train: Training, device: str) -> tuple[Steps, dict[str, float]]:
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    steps = Steps()
    return steps, train(device, steps) or {}


def _on_the_cpu() -> tuple[list[float], dict[str, float]]:
    """Runs this program again, in a process where the frameworks leave torch_xla alone."""
    environment = {**os.environ, "USE_TORCH_XLA": "0"}
    done = subprocess.run([sys.executable, *sys.argv, "--cpu"], env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit("The training on the CPU failed; its error is above.")
    losses, others = json.loads(done.stdout.splitlines()[-1])
    return losses, others


def _outcome(steps: Steps, others: dict[str, float]) -> Outcome:
    # An `item()` is a copy to the host that was asked for.
    fallbacks = [name for name in met.executed_fallback_ops() if name != "aten::_local_scalar_dense"]
    return steps.losses(), others, steps.compiled(), fallbacks


def _forked(function: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch_xla.launch(function, args, start_method="fork")  # they need not import the frameworks again


def _one_of_several(*args: Any) -> None:
    train, folder = args[-2:]
    hand_over(*_run(train, "xla"), folder)


def hand_over(steps: Steps, others: dict[str, float], folder: str) -> None:
    """Leaves what one of several processes found for the comparison."""
    Path(folder, f"{xr.global_ordinal()}.json").write_text(json.dumps(_outcome(steps, others)))


def _in_processes(train: Training, count: int, start: Start) -> list[Outcome]:
    os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(count))
    with tempfile.TemporaryDirectory() as folder:
        start(_one_of_several, (train, folder))
        return [json.loads(Path(folder, f"{ordinal}.json").read_text()) for ordinal in range(count)]


def _complaints(ours: Outcome, expected: tuple[list[float], dict[str, float]], allowed: Allowed) -> list[str]:
    losses, others, compiled, fallbacks = ours
    missed = [f"operators ran on the CPU: {', '.join(fallbacks)}"] if fallbacks else []
    # Where a loader ends the step, it does so as the next begins: what the third compiles is counted with the fourth.
    if any(compiled[SETTLED:]):
        missed.append(f"programs compiled by each step after the first: {compiled}; none is due after {SETTLED}")
    if len(losses) != len(expected[0]) or others.keys() != expected[1].keys():
        return [*missed, f"xla made {len(losses)} steps and {sorted(others)}, the CPU {len(expected[0])}"]
    names = [f"loss of step {number}" for number in range(1, len(losses) + 1)] + list(others)
    pairs = zip(names, [*losses, *others.values()], [*expected[0], *expected[1].values()], strict=True)
    for name, xla, cpu in pairs:
        print(f"{name:<28} xla {xla:.6f}  cpu {cpu:.6f}")
        if not abs(xla - cpu) <= allowed(name) * max(1, abs(cpu)):  # not: a NaN fails too
            missed.append(f"{name} is {xla} on xla and {cpu} on the CPU, more than {allowed(name)} apart")
    print(f"fallbacks {len(fallbacks)}, recompiles after step {SETTLED}: {sum(compiled[SETTLED:])}")
    return missed


def compare(train: Training, tolerance: float, coarse: dict[str, float] | None = None, processes: int = 1,
            start: Start = _forked) -> None:  # fmt: skip
    """Run `train(device, steps)` for "xla" and "cpu", print both, and exit with status 1 if they disagree.

    `train` calls `steps.ended(loss)` after each step and may return other numbers by name (an accuracy, the loss of an
    evaluation). Each number may differ by `tolerance` times the larger of 1 and the CPU's, or by the tolerance of its
    name in `coarse`, for numbers of fewer bits. No operator may run on the CPU, and no step after the third may
    compile. With `processes`, several processes run "xla" with one device each, and all must agree with the CPU.
    `start` starts them: `torch_xla.launch`, or a framework's function. A framework that starts processes for its own
    function calls `hand_over` in each process instead.
    """
    if "--cpu" in sys.argv:
        steps, others = _run(train, "cpu")
        print(json.dumps([steps.losses(), others]))
        return
    expected = _on_the_cpu()
    outcomes = _in_processes(train, processes, start) if processes > 1 else [_outcome(*_run(train, "xla"))]
    missed = [
        complaint
        for outcome in outcomes
        for complaint in _complaints(outcome, expected, lambda name: (coarse or {}).get(name, tolerance))
    ]
    if missed:
        sys.exit("\n".join(missed))
