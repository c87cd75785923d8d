"""The ways of running a workload that are compared: each one can run steps, and wait until they are done."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import jax
import torch
from torch import Tensor
from tqdm import tqdm

import torch_xla
import torch_xla.debug.metrics as met
from benchmarks import machine
from benchmarks.jax_steps import JaxInference, JaxTraining
from benchmarks.models import NARROW, OF_GPUS, WORKLOADS, Workload
from benchmarks.steps import USUAL, Setting, Steps, prepared

One = TypeVar("One", bound="Contestant")

# A model with fewer bytes of parameters may have most of its state packed by a replay.
SMALL_STATE = 2 << 20


class Contestant(ABC):
    """Runs one model on one batch."""

    settles = 6  # after so many steps every step is like the next

    @abstractmethod
    def step(self) -> None:
        """One step, perhaps still running when this returns."""

    @abstractmethod
    def wait(self) -> None:
        """Returns when every step is done."""


# What each way of running calls in the place of a function; the others call it as it is.
CALLED: dict[str, Callable[[Any], Any]] = {
    "inductor": torch.compile,
    "openxla": lambda function: torch.compile(function, backend="openxla"),
    "compiled": torch_xla.compile,
    "replay": lambda function: torch_xla.compile(function, replay=True),
}


def in_turns(
    contestants: Mapping[str, One], measure: Callable[[str, One], float], rounds: int, title: str
) -> dict[str, list[float]]:
    """Return the results of `measure` for each contestant, round by round, so that a slow machine is slow for all."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in tqdm(range(rounds), desc=f"{title}: measuring", leave=False, disable=None):
        for name, contestant in contestants.items():
            found[name].append(measure(name, contestant))
    return found


def ratio(
    found: Mapping[str, Sequence[float]], one: str, others: Sequence[str], best: Callable[..., float]
) -> float | None:
    """Return the ratio of `one` to the `best` (`min` or `max`) of the `others` that took part: the turns' median."""
    known = [found[other] for other in others if other in found]
    if not found.get(one) or not known:
        return None
    return median(a / best(b) for a, *b in zip(found[one], *known, strict=True))


class Eager(Contestant):
    """PyTorch as it is: on the GPU where the xla device is one and PyTorch is built for it, else on the CPU."""

    def __init__(self, workload: Workload, dropout: float, setting: Setting = USUAL) -> None:
        self.device = machine.of_pytorch()
        fused = True if self.device.type == "cuda" else None  # one kernel updates all
        self.steps = Steps(workload, dropout, setting, self.device, fused)

    def step(self) -> None:
        self.steps.step()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class Inductor(Eager):
    """PyTorch where `Eager` is, the model (forward and backward) compiled by inductor; the optimizer as it is."""

    def __init__(self, workload: Workload, dropout: float, setting: Setting = USUAL) -> None:
        super().__init__(workload, dropout, setting)
        self.steps.forward = CALLED["inductor"](self.steps.model)


class Ours(Contestant):
    """The xla device: every step is recorded and sent off with `torch_xla.sync()`."""

    fused: bool | None = None

    def __init__(self, workload: Workload, dropout: float, setting: Setting = USUAL) -> None:
        torch_xla.manual_seed(0)
        self.steps = Steps(workload, dropout, setting, torch.device("xla"), self.fused)

    def record(self) -> Tensor:
        """Records a step; what is returned must live until it is sent off."""
        return self.steps.step()

    def step(self) -> None:
        kept = self.steps.step()
        torch_xla.sync()
        del kept

    def wait(self) -> None:
        torch_xla.sync(wait=True)


class OpenXla(Ours):
    """The xla device, the model compiled by `torch.compile(backend="openxla")`: two operations of a step's program."""

    def __init__(self, workload: Workload, dropout: float, setting: Setting = USUAL) -> None:
        super().__init__(workload, dropout, setting)
        self.steps.forward = CALLED["openxla"](self.steps.model)


class Compiled(Ours):
    """The xla device, the step under `torch_xla.compile`, which replays it after a while."""

    way = "compiled"
    settles = 30

    def __init__(self, workload: Workload, dropout: float, setting: Setting = USUAL) -> None:
        super().__init__(workload, dropout, setting)
        parameters = sum(p.nbytes for p in self.steps.model.parameters())
        if parameters < SMALL_STATE and setting.mode == "training":
            self.settles = 1_010  # by then the small values of a small model are packed
        self.called = CALLED[self.way](self.steps.step)

    def record(self) -> Tensor:
        return self.called()

    def step(self) -> None:
        self.called()


class Replay(Compiled):
    """The xla device, the step replayed from its fourth call on, the optimizer's step counts on the device."""

    way = "replay"
    fused = True
    settles = 6


class Jax(Contestant):
    """The model by hand in JAX, one jitted step that is given its state to keep."""

    def __init__(self, workload: Workload, dropout: float, setting: Setting = USUAL) -> None:
        torch.manual_seed(0)
        known = [*WORKLOADS.items(), *OF_GPUS.items(), *NARROW.items()]
        name = next(name for name, each in known if each.model == workload.model)
        model, batch = prepared(workload, dropout, setting)
        self.steps: JaxTraining | JaxInference
        if setting.mode == "training":
            self.steps = JaxTraining(name, model, batch, dropout, setting.dtype)
        else:
            self.steps = JaxInference(name, model, batch, setting.dtype)
        self.last: object = None

    def step(self) -> None:
        self.last = self.steps.step()

    def wait(self) -> None:
        jax.block_until_ready(self.last)


CONTESTANTS: dict[str, type[Contestant]] = {
    "eager": Eager,
    "inductor": Inductor,
    "ours": Ours,
    "openxla": OpenXla,
    "compiled": Compiled,
    "replay": Replay,
    "jax": Jax,
}


@dataclass(frozen=True)
class Compiles:
    """How many programs were compiled so far, and the seconds it took."""

    count: int
    seconds: float

    @classmethod
    def so_far(cls) -> "Compiles":
        recorded = met.metric_data("CompileTime")
        return cls(recorded[0], recorded[1] / 1e9) if recorded else cls(0, 0.0)

    def __sub__(self, earlier: "Compiles") -> "Compiles":
        return Compiles(self.count - earlier.count, self.seconds - earlier.seconds)
