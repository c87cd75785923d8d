"""Twelve models of Transformers and timm, exported with a dynamic batch and run by a process with JAX alone.

Each is compared with PyTorch on the CPU, at two batches that the export has not seen.
"""

import logging
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import transformers as hf

from torch_xla.stablehlo import exported_program_to_stablehlo

WORDS, LENGTH, BATCHES = 101, 12, (1, 3)
TOLERANCE = 1e-5  # of the largest element
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TEXT = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
DECODER = {"num_key_value_heads": 2, "use_cache": False, **SIZES, **TEXT}
IMAGE = {"image_size": 64, "patch_size": 16, **SIZES}

MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "BERT": lambda: hf.BertModel(hf.BertConfig(**SIZES, **TEXT)),
    "CLIP, text": lambda: hf.CLIPTextModel(hf.CLIPTextConfig(max_position_embeddings=32, **SIZES, **TEXT)),
    "GPT-2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, use_cache=False, **TEXT)),
    "Llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER)),
    "Qwen 2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**DECODER)),
    "T5, encoder": lambda: hf.T5EncoderModel(
        hf.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=WORDS)
    ),
    "ViT": lambda: hf.ViTModel(hf.ViTConfig(**IMAGE)),
    "ConvNeXt": lambda: timm.create_model("convnext_atto", num_classes=10),
    "MobileNet 3": lambda: timm.create_model("mobilenetv3_small_050", num_classes=10),
    "ResNet-18": lambda: timm.create_model("resnet18", num_classes=10),
    "Swin": lambda: timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=112, depths=(1, 1), embed_dim=24, num_heads=(2, 4), num_classes=10
    ),
    "ViT of timm": lambda: timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=10),
}

# Reads the saved models by the `load.py` in their folders.
READER = """
import importlib.util, sys
from pathlib import Path
import numpy as np
for folder in sorted(Path(sys.argv[1]).iterdir()):
    spec = importlib.util.spec_from_file_location("load", folder / "load.py")
    load = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(load)
    forward, given = load.load(folder)["forward"], np.load(folder / "given.npz")
    np.savez(folder / "found.npz", **{batch: np.asarray(forward(given[batch])[-1]) for batch in given.files})
assert not {"torch", "torch_xla"} & set(sys.modules)
"""


class Tensors(torch.nn.Module):
    """A model that gives one tensor."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        result: Any = self.model(given)
        return result if isinstance(result, torch.Tensor) else result[0]


def inputs(name: str, batch: int) -> torch.Tensor:
    if name in list(MODELS)[:6]:
        return torch.randint(WORDS, (batch, LENGTH))
    side = 112 if name == "Swin" else 64
    return torch.randn(batch, 3, side, side)


def export(name: str, folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Saves a model and what it will be given; returns what it gives on the CPU, by batch."""
    model = Tensors(MODELS[name]()).eval()
    batch = torch.export.Dim("batch", max=64)
    exported = torch.export.export(model, (inputs(name, 2),), dynamic_shapes=({0: batch},), strict=False)
    exported_program_to_stablehlo(exported).save(folder)
    given = {str(batch): inputs(name, batch) for batch in BATCHES}
    np.savez(folder / "given.npz", **{batch: each.numpy() for batch, each in given.items()})
    with torch.no_grad():
        return {batch: model(each).numpy() for batch, each in given.items()}


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        expected = {name: export(name, root / str(number)) for number, name in enumerate(MODELS)}
        subprocess.run([sys.executable, "-c", READER, str(root)], check=True)
        for number, name in enumerate(MODELS):
            found = np.load(root / str(number) / "found.npz")
            apart = max(
                float(np.abs(found[batch] - each).max() / np.abs(each).max()) for batch, each in expected[name].items()
            )
            print(f"{name}: {apart:.0e} from the CPU with batches of {' and '.join(map(str, BATCHES))}")
            assert apart <= TOLERANCE, name


if __name__ == "__main__":
    main()
