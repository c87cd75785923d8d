"""The ways of training a workload that are compared: each one can run steps, and wait until they are done."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_xla
import torch_xla.debug.metrics as met
from benchmarks.jax_encoder import JaxEncoder
from benchmarks.models import Workload

LR = 1e-3


class Contestant(ABC):
    """Trains one model on one batch."""

    @abstractmethod
    def step(self) -> None:
        """One training step, perhaps still running when this returns."""

    @abstractmethod
    def wait(self) -> None:
        """Returns when every step is done."""


class Training:
    """Forward, loss, backward and AdamW on whatever device the model is."""

    def __init__(self, workload: Workload, dropout: float, device: torch.device, fused: bool | None = None) -> None:
        torch.manual_seed(0)
        self.model = workload.build(dropout).to(device)
        self.inputs, self.targets = (tensor.to(device) for tensor in workload.batch())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, fused=fused)
        self.forward: nn.Module = self.model

    def step(self) -> Tensor:
        loss = F.cross_entropy(self.forward(self.inputs), self.targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Eager(Contestant):
    """PyTorch on the CPU, as it is."""

    def __init__(self, workload: Workload, dropout: float) -> None:
        self.training = Training(workload, dropout, torch.device("cpu"))

    def step(self) -> None:
        self.training.step()

    def wait(self) -> None:
        pass


class Inductor(Eager):
    """PyTorch on the CPU, the model (forward and backward) compiled by inductor; the optimizer as it is."""

    def __init__(self, workload: Workload, dropout: float) -> None:
        super().__init__(workload, dropout)
        self.training.forward = torch.compile(self.training.model)


class Ours(Contestant):
    """The xla device: every step is recorded and sent off with `torch_xla.sync()`."""

    def __init__(self, workload: Workload, dropout: float) -> None:
        torch_xla.manual_seed(0)
        self.training = Training(workload, dropout, torch.device("xla"))

    def record(self) -> None:
        self.training.step()

    def step(self) -> None:
        self.training.step()
        torch_xla.sync()

    def wait(self) -> None:
        torch_xla.sync(wait=True)


class OpenXla(Ours):
    """The xla device, the model compiled by `torch.compile(backend="openxla")`: two operations of a step's program."""

    def __init__(self, workload: Workload, dropout: float) -> None:
        super().__init__(workload, dropout)
        self.training.forward = torch.compile(self.training.model, backend="openxla")


class Replay(Ours):
    """The xla device, the step replayed; the step count of the optimizer is on the device, as that asks for."""

    def __init__(self, workload: Workload, dropout: float) -> None:
        torch_xla.manual_seed(0)
        self.training = Training(workload, dropout, torch.device("xla"), fused=True)
        self.replayed = torch_xla.compile(self.training.step, replay=True)

    def record(self) -> None:
        self.replayed()

    def step(self) -> None:
        self.replayed()


class Jax(Contestant):
    """The encoder in plain JAX, one jitted step that is given its state to keep."""

    def __init__(self, workload: Workload, dropout: float) -> None:
        torch.manual_seed(0)
        self.encoder = JaxEncoder(workload.build(dropout), workload.batch(), layers=6, dropout=dropout)

    def step(self) -> None:
        self.encoder.step()

    def wait(self) -> None:
        jax.block_until_ready(self.encoder.state)


CONTESTANTS: dict[str, type[Contestant]] = {
    "eager": Eager,
    "inductor": Inductor,
    "ours": Ours,
    "openxla": OpenXla,
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
