"""sentence-transformers: a small BERT of random weights learns which halves of sentences belong together.

    python examples/frameworks/sentence_embeddings.py

Its trainer with a contrastive loss over the batch, and `encode`, which embeds on the device that the model is on.
"""

import os
import tempfile

import torch
from beside_cpu import Steps, compare
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from texts import sentences, tokenizer
from transformers import BertConfig, BertModel
from watcher import Watcher

UPDATES, BATCH = 20, 16


def halves(first: int, count: int) -> list[tuple[str, str]]:
    words = [line.split() for line in sentences(first, count)]
    return [(" ".join(line[: len(line) // 2]), " ".join(line[len(line) // 2 :])) for line in words]


def embedder(folder: str, device: str) -> SentenceTransformer:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer()), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                        num_attention_heads=4, max_position_embeddings=64, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)  # fmt: skip
    BertModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    padded = {"padding": "max_length", "max_length": 32}  # one length: one program
    words = Transformer(folder, max_seq_length=32, processing_kwargs={"text": padded})
    return SentenceTransformer(modules=[words, Pooling(64)], device=device)


def train(device: str, steps: Steps) -> dict[str, float]:
    if device == "xla":
        os.environ.setdefault("LOCAL_RANK", "0")
    with tempfile.TemporaryDirectory() as folder:
        model = embedder(folder, device)
        rows = [{"anchor": start, "positive": end} for start, end in halves(0, UPDATES * BATCH)]
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            use_cpu=device == "cpu",
            max_steps=UPDATES,
            per_device_train_batch_size=BATCH,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            report_to="none",
        )
        loss = MultipleNegativesRankingLoss(model)
        trainer = SentenceTransformerTrainer(model, arguments, train_dataset=Dataset.from_list(rows), loss=loss,
                                             callbacks=[Watcher(steps)])  # fmt: skip
        assert trainer.args.device.type == device
        trainer.train()
        starts, ends = zip(*halves(400, BATCH), strict=True)
        first, second = (model.encode(list(part), convert_to_tensor=True, show_progress_bar=False)
                         for part in (starts, ends))  # fmt: skip
        assert first.device.type == device
        alike = model.similarity(first, second).cpu()
    return {"similarity of halves": alike.diagonal().mean().item(), "of others": alike.mean().item()}


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
