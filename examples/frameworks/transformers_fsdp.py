"""The Trainer of Transformers with a model divided between two processes: a small GPT-2 on Python's language reference.

    python examples/frameworks/transformers_fsdp.py

`fsdp` without SPMD: `XlaFullyShardedDataParallel` around the model and each of its blocks, blocks computed again for
the backward pass, a checkpoint of parts that is resumed from.
"""

import os
import tempfile

import torch
from beside_cpu import Steps, compare
from trainers import Dividing, arguments, gpt2, trainer
from transformers import Trainer

import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

PROCESSES = 2
DIVIDED = {"xla": True, "xla_fsdp_grad_ckpt": True, "transformer_layer_cls_to_wrap": ["GPT2Block"]}


def dividing(device: str, folder: str, steps: Steps) -> Trainer:
    torch.manual_seed(0)  # each process divides the same model
    divided = {"fsdp": True, "fsdp_config": DIVIDED} if device == "xla" else {}
    given = arguments(device, folder, PROCESSES, max_grad_norm=0.5, save_steps=10, **divided)
    return trainer(Dividing, gpt2(layers=2), given, steps)


def train(device: str, steps: Steps) -> dict[str, float]:
    if device == "xla":
        os.environ["LOCAL_RANK"] = str(xr.local_ordinal())  # Accelerate asks for it; the Trainer logs where it is 0
    with tempfile.TemporaryDirectory() as own:
        folder = xm.mesh_reduce("folder", own, min)  # one for all processes
        made = dividing(device, folder, steps)
        made.train()
        found = {"evaluation": made.evaluate()["eval_loss"]}
        resumed = dividing(device, folder, Steps())
        resumed.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-10"))
        return found | {"evaluation after resuming": resumed.evaluate()["eval_loss"]}


if __name__ == "__main__":
    compare(train, tolerance=1e-4, processes=PROCESSES)
