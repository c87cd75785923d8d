"""Lightning's Trainer: a small network on scikit-learn's handwritten digits.

    python examples/frameworks/lightning_trainer.py

With validation, checkpoints by the best accuracy, and resuming from one. On a TPU it is enough to write
`Trainer(accelerator="tpu", devices=1)`. That asks for TPU chips; with xla on a CPU or GPU give the accelerator and the
strategy as objects, as here.
"""

import tempfile
from contextlib import ExitStack
from itertools import pairwise

import lightning
import torch
import torch.nn.functional as F
from beside_cpu import Steps, compare
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy, SingleDeviceXLAStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from xla_host import XLAHost

import torch_xla

WIDTHS = [64, 64, 10]


class Digits(lightning.LightningModule):
    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps
        layers = [part for n, m in pairwise(WIDTHS) for part in (nn.Linear(n, m), nn.ReLU())]
        self.network = nn.Sequential(*layers[:-1])
        self._between = ExitStack()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.network(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs: dict[str, torch.Tensor], batch: list[torch.Tensor], index: int) -> None:
        self.steps.ended(outputs["loss"])

    def on_validation_start(self) -> None:
        self._between.enter_context(self.steps.apart())

    def on_train_epoch_start(self) -> None:
        self._between.close()  # the validation, and the checkpoint that follows from it

    def on_fit_end(self) -> None:
        self._between.close()

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(-1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def loaders() -> tuple[DataLoader, DataLoader]:
    data = load_digits()
    digits = TensorDataset(torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(data.target))
    training, validation = Subset(digits, range(640)), Subset(digits, range(1500, 1756))
    return DataLoader(training, batch_size=64), DataLoader(validation, batch_size=64)


def trainer(device: str, folder: str) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator=XLAHost() if device == "xla" else "cpu",
        strategy=SingleDeviceXLAStrategy(torch_xla.device()) if device == "xla" else SingleDeviceStrategy("cpu"),
        devices=1,
        max_epochs=2,
        callbacks=[ModelCheckpoint(folder, filename="{epoch}", monitor="accuracy", mode="max", save_top_k=2)],
        logger=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def train(device: str, steps: Steps) -> dict[str, float]:
    training, validation = loaders()
    with tempfile.TemporaryDirectory() as folder:
        first = trainer(device, folder)
        first.fit(Digits(steps), training, validation)
        assert first.strategy.root_device.type == device

        again = Steps()
        resumed = trainer(device, folder)
        resumed.fit(Digits(again), training, validation, ckpt_path=f"{folder}/epoch=0.ckpt")
        assert len(again.losses()) == 10
        assert abs(again.losses()[-1] - steps.losses()[-1]) < 1e-4, "resumed is not the same training"
        return {
            "accuracy": first.callback_metrics["accuracy"].item(),
            "accuracy when resumed": resumed.callback_metrics["accuracy"].item(),
        }


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
