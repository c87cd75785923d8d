"""Trains the same on the xla device and on the CPU, and says how they differ. Every example here uses it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch

import torch_xla.debug.metrics as met

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
        """Notes a step; a loss that is a tensor is read when the training is over, so that nobody waits for it here."""
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


def _run(train: Training, device: str) -> tuple[Steps, dict[str, float]]:
    torch.manual_seed(0)
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


def compare(train: Training, tolerance: float) -> None:
    """Runs `train(device, steps)` for "xla" and "cpu", prints both, and exits with status 1 if they disagree.

    `train` calls `steps.ended(loss)` after each step and may return other numbers by name (an accuracy, the loss of an
    evaluation). Each number may differ by `tolerance` times the larger of 1 and the CPU's. Besides, no operator may
    run on the CPU, and no step after the third may compile.
    """
    if "--cpu" in sys.argv:
        steps, others = _run(train, "cpu")
        print(json.dumps([steps.losses(), others]))
        return
    expected, others_expected = _on_the_cpu()
    steps, others = _run(train, "xla")
    fallbacks = [name for name in met.executed_fallback_ops() if name != "aten::_local_scalar_dense"]
    # Where a loader ends the step, it does so as the next begins: what the third compiles is counted with the fourth.
    recompiles = sum(steps.compiled()[SETTLED:])
    missed = [f"operators ran on the CPU: {', '.join(fallbacks)}"] if fallbacks else []
    if recompiles:
        missed.append(
            f"programs compiled by each step after the first: {steps.compiled()}; none is due after {SETTLED}"
        )
    if len(steps.losses()) != len(expected) or others.keys() != others_expected.keys():
        missed.append(f"xla made {len(steps.losses())} steps, the CPU {len(expected)}")
    names = [f"loss of step {number}" for number in range(1, len(expected) + 1)] + list(others_expected)
    pairs = zip(names, [*steps.losses(), *others.values()], [*expected, *others_expected.values()], strict=True)
    for name, ours, theirs in pairs:
        print(f"{name:<28} xla {ours:.6f}  cpu {theirs:.6f}")
        if not abs(ours - theirs) <= tolerance * max(1, abs(theirs)):  # not: a NaN fails too
            missed.append(f"{name} is {ours} on xla and {theirs} on the CPU, more than {tolerance} apart")
    print(f"fallbacks {len(fallbacks)}, recompiles after step {SETTLED}: {recompiles}")
    if missed:
        sys.exit("\n".join(missed))
