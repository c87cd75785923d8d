"""Accelerate with a model divided between two processes: a small network on scikit-learn's handwritten digits.

    python examples/frameworks/accelerate_fsdp.py

Accelerate's FSDP plugin divides no model on xla, `XlaFullyShardedDataParallel` does, before `prepare`. Gradients are
clipped by the norm of all parts.
"""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from beside_cpu import Steps, compare
from digits import accuracy, images_and_labels, network
from in_notebook import PROCESSES, start
from torch.utils.data import DataLoader, TensorDataset

from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP

BATCH = 64
STEPS = 20


def train(device: str, steps: Steps) -> dict[str, float]:
    accelerator = Accelerator(cpu=device == "cpu")
    assert accelerator.device.type == device

    images, labels = images_and_labels()
    model = FSDP(network()) if device == "xla" else network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    each = BATCH // accelerator.num_processes
    loader = DataLoader(TensorDataset(images[: STEPS * BATCH], labels[: STEPS * BATCH]), batch_size=each)
    held_out = DataLoader(TensorDataset(images[-201:], labels[-201:]), batch_size=each)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    norms = []
    for batch, digits in loader:
        loss = F.cross_entropy(model(batch), digits)
        accelerator.backward(loss)
        norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        optimizer.zero_grad()
        steps.ended(accelerator.reduce(loss.detach(), "mean"))
    return {"first norm": norms[0].item(), "accuracy": accuracy(accelerator, model, held_out)}


if __name__ == "__main__":
    compare(train, tolerance=1e-4, processes=PROCESSES, start=start)
