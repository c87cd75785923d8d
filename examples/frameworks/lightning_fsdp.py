"""Lightning's Fabric with a model divided between two devices: a small network on scikit-learn's handwritten digits.

    python examples/frameworks/lightning_fsdp.py

`XLAFSDPStrategy` gives each process a part of every parameter and of the optimizer's state, by
`torch_xla.distributed.fsdp.XlaFullyShardedDataParallel`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from beside_cpu import Steps, compare, hand_over
from lightning.fabric import Fabric
from lightning.fabric.strategies import SingleDeviceStrategy, XLAFSDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from xla_host import XLAHost

PROCESSES = 2
BATCH = 64
STEPS = 20


def fit(fabric: Fabric, steps: Steps) -> dict[str, float]:
    torch.manual_seed(0)  # as the comparison does
    data = load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(data.target)
    chosen = TensorDataset(images[: STEPS * BATCH], labels[: STEPS * BATCH])
    sampler = DistributedSampler(chosen, fabric.world_size, fabric.global_rank, shuffle=False)
    loader = fabric.setup_dataloaders(
        DataLoader(chosen, BATCH // fabric.world_size, sampler=sampler), use_distributed_sampler=False
    )
    model = fabric.setup_module(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-2))
    for batch, digits in loader:
        loss = F.cross_entropy(model(batch), digits)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps.ended(fabric.all_gather(loss.detach()).mean())
    model.eval()
    found = torch.cat([model(batch).argmax(-1) == digits for batch, digits in loader])
    return {"accuracy": fabric.all_gather(found.float().mean()).mean().item()}


def divided(fabric: Fabric, folder: str) -> None:
    steps = Steps()
    hand_over(steps, fit(fabric, steps), folder)


def start(function: Callable[..., None], args: tuple[Any, ...]) -> None:
    Fabric(accelerator=XLAHost(), strategy=XLAFSDPStrategy(), devices=PROCESSES).launch(divided, args[-1])


def train(device: str, steps: Steps) -> dict[str, float]:
    """The training on the CPU; on xla `start` does it."""
    return fit(Fabric(accelerator="cpu", strategy=SingleDeviceStrategy("cpu"), devices=1), steps)


if __name__ == "__main__":
    compare(train, tolerance=1e-4, processes=PROCESSES, start=start)
