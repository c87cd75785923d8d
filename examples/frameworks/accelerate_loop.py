"""A loop of one's own with Accelerate: a small network on scikit-learn's handwritten digits.

    python examples/frameworks/accelerate_loop.py

Gradient accumulation with a last partial one at the end of each epoch, a scheduler, clipping of gradients, a state
saved in the middle and loaded again, and an accuracy by `gather_for_metrics`, which cuts what pads the last batch. Then
ten steps with `mixed_precision="bf16"`.
"""

import os
import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from beside_cpu import Steps, compare
from digits import accuracy, images_and_labels, network
from torch.utils.data import DataLoader, TensorDataset

BATCH = 64
IMAGES = 3 * BATCH  # an epoch has two updates, the second of one batch alone
EPOCHS = 10


def train(device: str, steps: Steps) -> dict[str, float]:
    if device == "xla":
        os.environ.setdefault("LOCAL_RANK", "0")  # Accelerate asks for it: this is the first process of its machine
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=device == "cpu")
    assert accelerator.device.type == device

    images, labels = images_and_labels()
    model = network()
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
    found = {"accuracy when saved": saved, "accuracy": last, "accuracy of the loaded state": loaded}
    return found | {"loss in bfloat16": in_bfloat16(device, images, labels)}


def in_bfloat16(device: str, images: torch.Tensor, labels: torch.Tensor) -> float:
    AcceleratorState._reset_state(reset_partial_state=True)  # a program has one precision, but for this one
    accelerator = Accelerator(mixed_precision="bf16", cpu=device == "cpu")
    torch.manual_seed(0)
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch, digits = images[:BATCH].to(accelerator.device), labels[:BATCH].to(accelerator.device)
    for _ in range(10):
        found = model(batch)
        loss = F.cross_entropy(found, digits)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    compare(train, tolerance=1e-4, coarse={"loss in bfloat16": 1e-2})
