"""Texts by Transformers: `generate` with a cache of fixed size, and pipelines, on small untrained models.

    python examples/frameworks/transformers_generation.py

A step here is a token, and its loss the largest score that the model gave.
"""

import torch
from beside_cpu import Steps, compare
from texts import sentences, tokenizer
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LogitsProcessor, pipeline

TOKENS = 20


class Noting(LogitsProcessor):
    """Hands the largest score of each token to the comparison."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.steps.ended(scores.max())
        return scores


def writer() -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=len(tokenizer()), n_positions=64, n_embd=32, n_layer=2, n_head=2,
                        bos_token_id=tokenizer().bos_token_id, eos_token_id=None,
                        pad_token_id=tokenizer().pad_token_id, initializer_range=0.5)  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def guesser() -> BertForMaskedLM:
    config = BertConfig(vocab_size=len(tokenizer()), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=64, initializer_range=0.5)  # fmt: skip
    return BertForMaskedLM(config).eval()


def train(device: str, steps: Steps) -> dict[str, float]:
    model = writer().to(device)
    lines = sentences(0, 4)
    prompts = tokenizer()(lines, max_length=16, truncation=True, padding="max_length", padding_side="left",
                          return_tensors="pt").to(device)  # fmt: skip
    written = model.generate(prompts.input_ids, attention_mask=prompts.attention_mask, max_new_tokens=TOKENS,
                             do_sample=False, cache_implementation="static", logits_processor=[Noting(steps)],
                             disable_compile=True)  # fmt: skip

    continued = pipeline("text-generation", model=model, tokenizer=tokenizer(), device=torch.device(device))
    (answer,) = continued(lines[0], max_new_tokens=8, do_sample=False, return_tensors=True)
    guess = pipeline("fill-mask", model=guesser(), tokenizer=tokenizer(), device=torch.device(device))
    (best, *_) = guess(f"Python {tokenizer().mask_token} language")
    return {"sum of the tokens": float(written.sum()),
            "sum of the pipeline's": float(sum(answer["generated_token_ids"])),
            "guess": float(best["token"]), "its probability": best["score"]}  # fmt: skip


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
