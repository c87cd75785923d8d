"""A loop of one's own with Accelerate: a small network on scikit-learn's handwritten digits.

    python examples/frameworks/accelerate_loop.py

Gradient accumulation with a last partial one at the end of each epoch, a scheduler, clipping of gradients, a state
saved in the middle and loaded again, and an accuracy by `gather_for_metrics`, which cuts what pads the last batch.
"""

import os
import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from beside_cpu import Steps, compare
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 64
IMAGES = 3 * BATCH  # an epoch has two updates, the second of one batch alone
EPOCHS = 10


def accuracy(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = []
    for images, labels in loader:
        with torch.no_grad():
            found = model(images).argmax(-1)
        found, labels = accelerator.gather_for_metrics((found, labels))
        right.append((found == labels).cpu())
    model.train()
    return torch.cat(right).float().mean().item()


def train(device: str, steps: Steps) -> dict[str, float]:
    if device == "xla":
        os.environ.setdefault("LOCAL_RANK", "0")  # Accelerate asks for it: this is the first process of its machine
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=device == "cpu")
    assert accelerator.device.type == device

    data = load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(data.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * EPOCHS)
    loader = DataLoader(TensorDataset(images[:IMAGES], labels[:IMAGES]), batch_size=BATCH)
    held_out = DataLoader(TensorDataset(images[-201:], labels[-201:]), batch_size=BATCH)
    model, optimizer, scheduler, loader, held_out = accelerator.prepare(model, optimizer, scheduler, loader, held_out)

    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(EPOCHS):
            for batch, digits in loader:
                with accelerator.accumulate(model):
                    loss = F.cross_entropy(model(batch), digits)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    steps.ended(loss)
            if epoch == EPOCHS // 2:
                with steps.apart():
                    accelerator.save_state(folder)
                    saved = accuracy(accelerator, model, held_out)
        last = accuracy(accelerator, model, held_out)
        accelerator.load_state(folder)
        loaded = accuracy(accelerator, model, held_out)
    assert loaded == saved
    return {"accuracy when saved": saved, "accuracy": last, "accuracy of the loaded state": loaded}


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
