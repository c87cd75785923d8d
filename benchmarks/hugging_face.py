"""Two configurations of Hugging Face's `transformers`, with random weights, where that package is installed."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from benchmarks.models import Workload, tokens

LENGTH = 128


class Logits(nn.Module):
    """A language model of Hugging Face's, as the others here: tokens in, one row of logits for each."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits.flatten(0, 1)


def gpt2(transformers: Any, dropout: float) -> nn.Module:
    """GPT-2, small."""
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    configuration = transformers.GPT2Config(
        vocab_size=1000, n_positions=LENGTH, n_embd=256, n_layer=4, n_head=4, **rates
    )
    return Logits(transformers.GPT2LMHeadModel(configuration))


def llama(transformers: Any, dropout: float) -> nn.Module:
    """Llama, small; it has no dropout."""
    configuration = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )
    return Logits(transformers.LlamaForCausalLM(configuration))


def workloads() -> dict[str, Workload]:
    """Both by name; none where the package is missing."""
    if importlib.util.find_spec("transformers") is None:
        return {}

    def building(build: Callable[[Any, float], nn.Module]) -> Callable[[float], nn.Module]:
        return lambda dropout: build(importlib.import_module("transformers"), dropout)

    return {
        "hf_gpt2": Workload("Hugging Face GPT-2, 4 x 256", "4x128", building(gpt2), tokens(4, LENGTH), 0.1),
        "hf_llama": Workload("Hugging Face Llama, 4 x 256", "4x128", building(llama), tokens(4, LENGTH)),
    }
