"""The Trainer of Transformers as the examples of several devices share it: its settings, and what it leaves out."""

from typing import Any

import torch
from beside_cpu import Steps
from texts import pieces
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from watcher import Watcher

LENGTH = 32
BATCH = 8


class Dividing(Trainer):
    """Makes the optimizer, which the Trainer of Transformers 5.24 forgets where the model is divided."""

    def _wrap_model(self, model: Any, *others: Any, **more: Any) -> Any:
        wrapped = super()._wrap_model(model, *others, **more)
        if self.optimizer is None:
            self.create_optimizer(wrapped)
        return wrapped


def arguments(device: str, folder: str, processes: int, **more: Any) -> TrainingArguments:
    """Return the arguments of 20 steps; in each step, all processes together take one batch."""
    return TrainingArguments(
        output_dir=folder,
        use_cpu=device == "cpu",
        per_device_train_batch_size=BATCH // (1 if device == "cpu" else processes),
        max_steps=20,
        learning_rate=3e-3,
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        **more,
    )


def gpt2(layers: int) -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=32, n_layer=layers, n_head=2, bos_token_id=0,
                        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)  # fmt: skip
    return GPT2LMHeadModel(config)


def trainer(of: type[Trainer], model: torch.nn.Module, given: TrainingArguments, steps: Steps) -> Trainer:
    """One that trains on the text of Python's language reference, and evaluates on what follows."""
    made = of(model, given, train_dataset=pieces(0, 200, LENGTH), eval_dataset=pieces(200, 30, LENGTH),
              callbacks=[Watcher(steps)])  # fmt: skip
    assert made.args.device.type == ("cpu" if given.use_cpu else "xla")
    return made
