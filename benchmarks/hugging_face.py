"""Configurations of Hugging Face's `transformers`, small and with random weights, where that package is installed.

    pip install transformers
    python -m benchmarks.everything --only hugging_face

Nothing is downloaded: a model is made of its configuration.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from benchmarks.models import Workload, tokens, values

LENGTH = 128
WORDS = 1000


class Logits(nn.Module):
    """A model of Hugging Face's, as the others here: a tensor in, one row of logits for each thing that has a class."""

    def __init__(self, model: nn.Module, argument: str = "input_ids", **options: Any) -> None:
        super().__init__()
        self.model = model
        self.argument = argument
        self.options = options

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.model(**{self.argument: inputs}, **self.options).logits
        return logits.flatten(0, -2)


def gpt2(transformers: Any, dropout: float) -> nn.Module:
    """GPT-2, small."""
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    configuration = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=256, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0, **rates
    )
    return Logits(transformers.GPT2LMHeadModel(configuration), use_cache=False)


def bert(transformers: Any, dropout: float) -> nn.Module:
    """BERT, small, that names masked words."""
    configuration = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return Logits(transformers.BertForMaskedLM(configuration))


def llama(transformers: Any, dropout: float) -> nn.Module:
    """Llama, small; it has no dropout."""
    configuration = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )
    return Logits(transformers.LlamaForCausalLM(configuration), use_cache=False)


def vit(transformers: Any, dropout: float) -> nn.Module:
    """ViT, small, for images of 64 by 64 in ten classes."""
    configuration = transformers.ViTConfig(
        image_size=64,
        patch_size=8,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=768,
        num_labels=10,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return Logits(transformers.ViTForImageClassification(configuration), "pixel_values")


def workloads() -> dict[str, Workload]:
    """All by name; none where the package is missing."""
    if importlib.util.find_spec("transformers") is None:
        return {}

    def building(build: Callable[[Any, float], nn.Module]) -> Callable[[float], nn.Module]:
        return lambda dropout: build(importlib.import_module("transformers"), dropout)

    def reading(name: str, build: Callable[[Any, float], nn.Module], dropout: float = 0.0) -> Workload:
        return Workload(f"Hugging Face {name}, 4 x 256", "4x128", building(build), tokens(4, LENGTH), dropout)

    return {
        "hf_gpt2": reading("GPT-2", gpt2, 0.1),
        "hf_bert": reading("BERT", bert, 0.1),
        "hf_llama": reading("Llama", llama),
        "hf_vit": Workload("Hugging Face ViT, 4 x 192", "16 of 64x64", building(vit), values(16, 3, 64, 64)),
    }
