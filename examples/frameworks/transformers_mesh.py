"""The Trainer of Transformers over a mesh: a small Llama on the text of Python's language reference.

    python examples/frameworks/transformers_mesh.py

One process, four devices, each with a part of every parameter and of every batch: `fsdp` by SPMD.
"""

import os
import tempfile

from beside_cpu import Steps, compare
from trainers import LENGTH, Dividing, arguments, trainer
from transformers import LlamaConfig, LlamaForCausalLM

import torch_xla.runtime as xr

DIVIDED = {"xla": True, "xla_fsdp_v2": True, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}


def train(device: str, steps: Steps) -> dict[str, float]:
    config = LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=2, max_position_embeddings=LENGTH)  # fmt: skip
    divided = {}
    if device == "xla":
        os.environ.update(LOCAL_RANK="0", PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4")
        xr.use_spmd()
        divided = {"fsdp": True, "fsdp_config": DIVIDED, "dataloader_drop_last": True}
    with tempfile.TemporaryDirectory() as folder:
        given = arguments(device, folder, processes=1, save_strategy="no", **divided)
        trainer(Dividing, LlamaForCausalLM(config), given, steps).train()
    return {}


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
