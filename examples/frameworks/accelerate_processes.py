"""Accelerate in two processes: a small network on scikit-learn's handwritten digits.

    python examples/frameworks/accelerate_processes.py

`notebook_launcher` starts the processes, as `accelerate launch` would. Each has its part of every batch; the accuracy
counts what `gather_for_metrics` brings together, and all have the state that was saved and loaded again.
"""

import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from beside_cpu import Steps, compare
from digits import accuracy, images_and_labels, network
from in_notebook import PROCESSES, start
from torch.utils.data import DataLoader, TensorDataset

BATCH = 64
STEPS = 20


def train(device: str, steps: Steps) -> dict[str, float]:
    accelerator = Accelerator(cpu=device == "cpu")
    assert accelerator.device.type == device
    assert accelerator.num_processes == (1 if device == "cpu" else PROCESSES)

    images, labels = images_and_labels()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS * accelerator.num_processes)
    each = BATCH // accelerator.num_processes
    loader = DataLoader(TensorDataset(images[: STEPS * BATCH], labels[: STEPS * BATCH]), batch_size=each)
    held_out = DataLoader(TensorDataset(images[-201:], labels[-201:]), batch_size=each)
    model, optimizer, scheduler, loader, held_out = accelerator.prepare(model, optimizer, scheduler, loader, held_out)

    with tempfile.TemporaryDirectory() as own:
        (folder,) = broadcast_object_list([own])
        for number, (batch, digits) in enumerate(loader, 1):
            loss = F.cross_entropy(model(batch), digits)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            steps.ended(accelerator.reduce(loss.detach(), "mean"))
            if number == STEPS // 2:
                with steps.apart():
                    accelerator.save_state(folder)
                    saved = accuracy(accelerator, model, held_out)
        last = accuracy(accelerator, model, held_out)
        accelerator.wait_for_everyone()
        accelerator.load_state(folder)
        loaded = accuracy(accelerator, model, held_out)
        accelerator.wait_for_everyone()
    assert loaded == saved
    return {"accuracy when saved": saved, "accuracy": last, "accuracy of the loaded state": loaded}


if __name__ == "__main__":
    compare(train, tolerance=1e-4, processes=PROCESSES, start=start)
