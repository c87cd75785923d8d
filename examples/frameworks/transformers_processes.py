"""The Trainer of Transformers in four processes: a small GPT-2 on the text of Python's language reference.

    python examples/frameworks/transformers_processes.py

Each process trains on its quarter of every batch: together as one process does on the whole batch.
"""

import os
import tempfile

from beside_cpu import Steps, compare
from trainers import arguments, gpt2, trainer
from transformers import Trainer

import torch_xla.runtime as xr

PROCESSES = 4


def train(device: str, steps: Steps) -> dict[str, float]:
    if device == "xla":
        os.environ["LOCAL_RANK"] = str(xr.local_ordinal())  # Accelerate asks for it; the Trainer logs where it is 0
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(Trainer, gpt2(layers=1), arguments(device, folder, PROCESSES, save_steps=10), steps)
        made.train()
        return {"evaluation": made.evaluate()["eval_loss"]}


if __name__ == "__main__":
    compare(train, tolerance=1e-4, processes=PROCESSES)
