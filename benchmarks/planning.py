"""Plans the first steps of a Llama of Hugging Face's `transformers` over many devices: how long does it take?

    pip install transformers
    python -m benchmarks.planning [--layers 32] [--width 4096] [--devices 64] [--length 2048] [--device "TPU v5p"]

By default it is Llama-3-8B with AdamW, its parameters divided over 64 devices, one sequence for each. Nothing is
downloaded, and nothing runs: it prints the plan, the seconds it took and the memory of this process.
"""

import argparse
import importlib
import resource
import time
from typing import Any

import numpy as np
import torch

import torch_xla.debug
import torch_xla.distributed.spmd as xs

_HEADS, _GROUPS, _WORDS = 32, 8, 128_256
_INNER = 14_336 / 4096


class Training:
    """Makes the model in the first call, divided over the devices, and trains it in the others."""

    def __init__(self, layers: int, width: int, devices: int, length: int) -> None:
        transformers: Any = importlib.import_module("transformers")
        self.configuration = transformers.LlamaConfig(
            hidden_size=width,
            intermediate_size=round(width * _INNER),
            num_hidden_layers=layers,
            num_attention_heads=_HEADS,
            num_key_value_heads=_GROUPS,
            vocab_size=_WORDS,
            max_position_embeddings=8192,
            rope_theta=5e5,
            use_cache=False,
        )
        self.made_of = transformers.LlamaForCausalLM
        self.size = devices, length
        self.mesh = xs.Mesh(np.arange(devices), (devices,), ("fsdp",))
        self.model: Any = None

    def __call__(self) -> None:
        """One step."""
        if self.model is None:
            with torch.device("xla"):
                self.model = self.made_of(self.configuration)
            for parameter in self.model.parameters():
                xs.mark_sharding(parameter, self.mesh, ("fsdp",) + (None,) * (parameter.dim() - 1))
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
            return
        words = torch.randint(0, _WORDS, self.size, device="xla")
        xs.mark_sharding(words, self.mesh, ("fsdp", None))
        self.model(input_ids=words, labels=words).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    """Plans, and says what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("layers", 32), ("width", 4096), ("devices", 64), ("length", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="TPU v5p")
    chosen = parser.parse_args()
    start = time.perf_counter()
    training = Training(chosen.layers, chosen.width, chosen.devices, chosen.length)
    print(torch_xla.debug.plan(training, steps=3, devices=chosen.devices, device=chosen.device))
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{parameters / 1e9:.2f} billion parameters, {time.perf_counter() - start:.0f} s, {taken / 1e6:.1f} GB")


if __name__ == "__main__":
    main()
