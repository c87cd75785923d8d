"""Accelerate in two processes that `accelerate launch` starts: a small network on scikit-learn's handwritten digits.

    python examples/frameworks/accelerate_launch.py

The command is `accelerate launch --tpu --main_training_function in_each_process accelerate_launch.py FOLDER`, on a CPU
too: it starts a process for each device, as `torch_xla.launch` does.
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from beside_cpu import Steps, compare, hand_over
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PROCESSES = 2
BATCH = 64
STEPS = 20


def start(function: Callable[..., None], args: tuple[Any, ...]) -> None:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--tpu", "--mixed_precision", "no"]
    ours = ["--main_training_function", in_each_process.__name__, __file__, args[-1]]
    subprocess.run([*launch, *ours], check=True)


def in_each_process() -> None:
    """Train in each process; `accelerate launch` calls this with the rest of the command as `sys.argv`."""
    torch.manual_seed(0)  # as the comparison does
    steps = Steps()
    hand_over(steps, train("xla", steps), sys.argv[1])


def train(device: str, steps: Steps) -> dict[str, float]:
    accelerator = Accelerator(cpu=device == "cpu", gradient_accumulation_steps=2)
    assert accelerator.device.type == device
    assert accelerator.num_processes == (1 if device == "cpu" else PROCESSES)

    data = load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(data.target)
    chosen = TensorDataset(images[: STEPS * BATCH], labels[: STEPS * BATCH])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(chosen, batch_size=BATCH // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch, digits in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(batch), digits)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        steps.ended(accelerator.reduce(loss.detach(), "mean"))
    return {}


if __name__ == "__main__":
    compare(train, tolerance=1e-4, processes=PROCESSES, start=start)
