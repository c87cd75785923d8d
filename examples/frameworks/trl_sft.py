"""TRL: supervised fine-tuning of a small Llama of random weights, on Python's language reference.

    python examples/frameworks/trl_sft.py

The loss of prompts with completions is that of the completions. All are padded to one length, so that one program runs
them all.
"""

import os
import tempfile

import torch
from beside_cpu import Steps, compare
from datasets import Dataset
from texts import sentences, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer
from watcher import Watcher

UPDATES, BATCH, LENGTH = 20, 8, 64


def examples(first: int, count: int) -> Dataset:
    halves = [line.rpartition(" ") for line in sentences(first, count)]
    return Dataset.from_list([{"prompt": start, "completion": f" {end}"} for start, _, end in halves])


def train(device: str, steps: Steps) -> dict[str, float]:
    if device == "xla":
        os.environ.setdefault("LOCAL_RANK", "0")
    words = tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
        )  # fmt: skip
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            output_dir=folder,
            use_cpu=device == "cpu",
            max_steps=UPDATES,
            per_device_train_batch_size=BATCH,
            learning_rate=3e-3,
            max_length=LENGTH,
            pad_to_multiple_of=LENGTH,
            bf16=False,
            gradient_checkpointing=True,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            report_to="none",
        )
        trainer = SFTTrainer(model, arguments, train_dataset=examples(0, UPDATES * BATCH), processing_class=words,
                             eval_dataset=examples(400, 2 * BATCH), callbacks=[Watcher(steps)])  # fmt: skip
        assert trainer.args.device.type == device
        trainer.train()
        return {"evaluation": trainer.evaluate()["eval_loss"]}


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
