"""The Trainer of Transformers: a small GPT-2 on the text of Python's language reference.

    python examples/frameworks/transformers_trainer.py

With gradient accumulation, checkpoints, resuming from one, and an evaluation, on the xla device and on the CPU. The
Trainer takes the xla device wherever torch_xla is installed; nothing in the program names it.
"""

import os
import tempfile

from beside_cpu import Steps, compare
from texts import pieces
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from watcher import Watcher

LENGTH = 64
UPDATES = 20


def trainer(device: str, folder: str, steps: Steps) -> Trainer:
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0,
                        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=device == "cpu",
        max_steps=UPDATES,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        warmup_steps=5,
        logging_steps=1,
        save_steps=UPDATES // 2,
        disable_tqdm=True,
        report_to="none",
    )
    model = GPT2LMHeadModel(config)
    made = Trainer(model, arguments, train_dataset=pieces(0, 400, LENGTH), eval_dataset=pieces(400, 32, LENGTH),
                   callbacks=[Watcher(steps)])  # fmt: skip
    assert made.args.device.type == device
    return made


def train(device: str, steps: Steps) -> dict[str, float]:
    if device == "xla":
        os.environ.setdefault("LOCAL_RANK", "0")  # Accelerate asks for it, and without it the Trainer logs nothing
    with tempfile.TemporaryDirectory() as folder:
        first = trainer(device, folder, steps)
        first.train()
        evaluated = first.evaluate()["eval_loss"]

        again = Steps()
        resumed = trainer(device, folder, again)
        resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-{UPDATES // 2}")
        assert len(again.losses()) == UPDATES - UPDATES // 2
        assert abs(again.losses()[-1] - steps.losses()[-1]) < 1e-4, "resumed is not the same training"
        return {"evaluation": evaluated, "last loss when resumed": again.losses()[-1],
                "evaluation when resumed": resumed.evaluate()["eval_loss"]}  # fmt: skip


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
