"""Configurations of Hugging Face's `transformers` and `diffusers`, small and with random weights, where installed.

    pip install transformers diffusers
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


class OfImages(nn.Module):
    """A UNet of images in as many channels as there are classes, whose logits are the means of the channels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images, 0).sample.mean((2, 3))


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


def mixtral(transformers: Any, dropout: float) -> nn.Module:
    """Mixtral, small: each token goes to two of four experts. It has no dropout."""
    configuration = transformers.MixtralConfig(
        vocab_size=WORDS,
        hidden_size=256,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=LENGTH,
    )
    return Logits(transformers.MixtralForCausalLM(configuration), use_cache=False)


def convnext(transformers: Any, dropout: float) -> nn.Module:
    """ConvNeXt, small: depthwise convolutions of 7 by 7."""
    configuration = transformers.ConvNextConfig(hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 4, 2], num_labels=10)
    return Logits(transformers.ConvNextForImageClassification(configuration), "pixel_values")


def efficientnet(transformers: Any, dropout: float) -> nn.Module:
    """EfficientNet, half as wide as its smallest: depthwise convolutions, and channels weighed by their means."""
    configuration = transformers.EfficientNetConfig(
        image_size=64, width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640, num_labels=10, dropout_rate=dropout
    )
    return Logits(transformers.EfficientNetForImageClassification(configuration), "pixel_values")


def unet(diffusers: Any, dropout: float) -> nn.Module:
    """The UNet of a diffusion model, small, with attention below."""
    return OfImages(
        diffusers.UNet2DModel(
            sample_size=32,
            out_channels=10,
            block_out_channels=(32, 64, 128),
            down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
            layers_per_block=1,
        )
    )


def workloads() -> dict[str, Workload]:
    """All by name; none where the package is missing."""
    if importlib.util.find_spec("transformers") is None:
        return {}
    has_diffusers = importlib.util.find_spec("diffusers") is not None

    def building(
        build: Callable[[Any, float], nn.Module], package: str = "transformers"
    ) -> Callable[[float], nn.Module]:
        return lambda dropout: build(importlib.import_module(package), dropout)

    def seeing(name: str, build: Callable[[Any, float], nn.Module]) -> Workload:
        return Workload(f"Hugging Face {name}", "8 of 64x64", building(build), values(8, 3, 64, 64))

    def reading(name: str, build: Callable[[Any, float], nn.Module], dropout: float = 0.0) -> Workload:
        return Workload(f"Hugging Face {name}, 4 x 256", "4x128", building(build), tokens(4, LENGTH), dropout)

    return {
        "hf_gpt2": reading("GPT-2", gpt2, 0.1),
        "hf_bert": reading("BERT", bert, 0.1),
        "hf_llama": reading("Llama", llama),
        "hf_vit": Workload("Hugging Face ViT, 4 x 192", "16 of 64x64", building(vit), values(16, 3, 64, 64)),
        "hf_mixtral": reading("Mixtral", mixtral),
        "hf_convnext": seeing("ConvNeXt", convnext),
        "hf_efficientnet": seeing("EfficientNet", efficientnet),
        **({"hf_unet": Workload("Hugging Face UNet", "4 of 32x32", building(unet, "diffusers"), values(4, 3, 32, 32))}
           if has_diffusers else {}),
    }  # fmt: skip
