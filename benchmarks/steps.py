"""A model on some device and its steps, in plain PyTorch: `benchmarks.former` runs this with another package, too."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models import Workload

LR = 1e-3


@dataclass(frozen=True)
class Setting:
    """How a workload is run."""

    mode: str = "training"  # or "inference"
    dtype: str = "float32"  # or "bfloat16": autocast in training, the weights' dtype in inference
    batch: int | None = None  # how many examples; otherwise the workload's own


USUAL = Setting()


class Steps:
    """A model on some device, its batch, and a step: training with AdamW, or inference."""

    def __init__(
        self, workload: Workload, dropout: float, setting: Setting, device: torch.device, fused: bool | None = None
    ) -> None:
        torch.manual_seed(0)
        self.setting = setting
        self.dtype = getattr(torch, setting.dtype)
        self.model, batch = prepared(workload, dropout, setting)
        self.model = self.model.to(device)
        self.inputs, self.targets = (tensor.to(device) for tensor in batch)
        if setting.mode == "inference":
            self.model.to(self.dtype)
            self.inputs = self.inputs.to(self.dtype) if self.inputs.is_floating_point() else self.inputs
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, fused=fused)
        self.forward: nn.Module = self.model

    def step(self) -> Tensor:
        """The loss, or the logits."""
        return self.train() if self.setting.mode == "training" else self.infer()

    def autocast(self) -> AbstractContextManager[None]:
        wanted = self.dtype is not torch.float32
        return torch.autocast(self.inputs.device.type, torch.bfloat16, enabled=wanted)

    def train(self) -> Tensor:
        """Forward, loss, backward and AdamW."""
        with self.autocast():
            loss = F.cross_entropy(self.forward(self.inputs), self.targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def infer(self) -> Tensor:
        """The logits."""
        return self.forward(self.inputs)


def prepared(workload: Workload, dropout: float, setting: Setting) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """The model on the CPU and a batch for it."""
    model = workload.build(dropout).train(setting.mode == "training")
    return model, workload.batch(setting.batch) if setting.batch else workload.batch()
