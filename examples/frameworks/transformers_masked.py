"""Masked language modelling with the Trainer of Transformers: a small BERT on lines of Python's language reference.

    python examples/frameworks/transformers_masked.py

With the metrics of each epoch printed (`tpu_metrics_debug`), `predict`, a training that stops early, one in bfloat16.
"""

import os
import tempfile
from typing import Any

import numpy
from beside_cpu import Steps, compare
from texts import sentences, tokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
)
from watcher import Watcher

LENGTH = 32
BATCH = 8


def rows(first: int, count: int) -> list[dict[str, list[int]]]:
    encoded = tokenizer()(sentences(first, count), truncation=True, max_length=LENGTH, padding="max_length")
    return [dict(zip(encoded, row, strict=True)) for row in zip(*encoded.values(), strict=True)]


def trainer(device: str, folder: str, steps: Steps, **settings: Any) -> Trainer:
    config = BertConfig(vocab_size=len(tokenizer()), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)  # fmt: skip
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=device == "cpu",
        debug="tpu_metrics_debug" if device == "xla" else "",
        per_device_train_batch_size=BATCH,
        learning_rate=3e-3,
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        **{"save_strategy": "no", **settings},
    )
    masks = DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.3, seed=0)
    made = Trainer(BertForMaskedLM(config), arguments, data_collator=masks, train_dataset=rows(0, 160),
                   eval_dataset=rows(160, 32), callbacks=[Watcher(steps)])  # fmt: skip
    assert made.args.device.type == device
    return made


def train(device: str, steps: Steps) -> dict[str, float]:
    if device == "xla":
        os.environ.setdefault("LOCAL_RANK", "0")  # Accelerate asks for it, and without it the Trainer logs nothing
    with tempfile.TemporaryDirectory() as folder:
        first = trainer(device, folder, steps, max_steps=20)
        first.train()
        predicted = first.predict(rows(160, 32))

        stopped = trainer(device, folder, Steps(), max_steps=20, eval_strategy="steps", eval_steps=2,
                          save_strategy="steps", save_steps=2, load_best_model_at_end=True)  # fmt: skip
        stopped.add_callback(EarlyStoppingCallback(2, early_stopping_threshold=100.0))  # nothing is so much better
        stopped.train()

        halved = trainer(device, folder, Steps(), max_steps=5, bf16=True)
        halved.train()
        return {"loss of what was predicted": predicted.metrics["test_loss"],
                "mean size of what was predicted": float(numpy.abs(predicted.predictions).mean()),
                "step of the early end": stopped.state.global_step,
                "evaluation of the best": stopped.evaluate()["eval_loss"],
                "evaluation in bfloat16": halved.evaluate()["eval_loss"]}  # fmt: skip


if __name__ == "__main__":
    compare(train, tolerance=1e-4, coarse={"evaluation in bfloat16": 1e-2})
