"""Lightning's Trainer on two devices: a small network on scikit-learn's handwritten digits.

    python examples/frameworks/lightning_processes.py

The strategy for several devices starts a process for each and gives it its part of every batch. On TPUs that is
`Trainer(accelerator="tpu", devices=2)`; on a CPU or GPU give the accelerator and the strategy as objects, as here.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from beside_cpu import Steps, compare, hand_over
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy, XLAStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from xla_host import XLAHost

PROCESSES = 2
BATCH = 64
STEPS = 20


class Digits(lightning.LightningModule):
    def __init__(self, steps: Steps, folder: str | None = None) -> None:
        super().__init__()
        self.steps, self.folder = steps, folder
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.network(images), labels)

    def on_train_batch_end(self, outputs: dict[str, torch.Tensor], batch: list[torch.Tensor], index: int) -> None:
        self.steps.ended(self.all_gather(outputs["loss"].detach()).mean())

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(-1) == labels).float().mean(), sync_dist=True)

    def on_fit_end(self) -> None:
        if self.folder:
            hand_over(self.steps, found(self.trainer), self.folder)

    def part(self, images: slice) -> DataLoader:
        """Of every batch what this process has; Lightning's own sampler would shuffle."""
        data = load_digits()
        digits = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(data.target)
        chosen = TensorDataset(*(each[images] for each in digits))
        sampler = DistributedSampler(chosen, self.trainer.world_size, self.trainer.global_rank, shuffle=False)
        return DataLoader(chosen, BATCH // self.trainer.world_size, sampler=sampler)

    def train_dataloader(self) -> DataLoader:
        return self.part(slice(STEPS * BATCH))

    def val_dataloader(self) -> DataLoader:
        return self.part(slice(1500, 1500 + 4 * BATCH))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def found(trainer: lightning.Trainer) -> dict[str, float]:
    return {"accuracy": trainer.callback_metrics["accuracy"].item()}


def trainer(accelerator: Any, strategy: Any, devices: int, folder: str) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator=accelerator,
        strategy=strategy,
        devices=devices,
        max_epochs=1,
        use_distributed_sampler=False,
        callbacks=[ModelCheckpoint(folder, filename="{epoch}", monitor="accuracy", mode="max")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def start(function: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch.manual_seed(0)  # as the comparison does
    with tempfile.TemporaryDirectory() as folder:
        fit = trainer(XLAHost(), XLAStrategy(), PROCESSES, folder)
        fit.fit(Digits(Steps(), args[-1]))
        assert Path(folder, "epoch=0.ckpt").exists()


def train(device: str, steps: Steps) -> dict[str, float]:
    """The training on the CPU; on xla `start` does it."""
    with tempfile.TemporaryDirectory() as folder:
        fit = trainer("cpu", SingleDeviceStrategy("cpu"), 1, folder)
        fit.fit(Digits(steps))
        return found(fit)


if __name__ == "__main__":
    compare(train, tolerance=1e-4, processes=PROCESSES, start=start)
