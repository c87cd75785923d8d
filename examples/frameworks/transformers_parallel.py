"""A Llama of Transformers, divided among two processes by its own tensor parallelism and FSDP, as on CUDA.

    python examples/frameworks/transformers_parallel.py

Each process has half of every divided weight; the logits are those of the whole model on the CPU.
"""

import os
import subprocess
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig

import torch_xla  # noqa: F401

PROCESSES = 2
TOLERANCE = 1e-5
WAYS: dict[str, dict[str, Any]] = {
    'tp_plan="auto"': {"tp_plan": "auto"},
    "tp_size=2": {"distributed_config": DistributedConfig(tp_size=PROCESSES)},
    "fsdp_size=2": {"distributed_config": DistributedConfig(fsdp_size=PROCESSES)},
}


def compare(name: str, folder: str) -> None:
    """Loads the model divided, trains a step's backward pass, and compares its logits with the whole model's."""
    tokens = torch.arange(16).reshape(2, 8)
    expected = AutoModelForCausalLM.from_pretrained(folder)(input_ids=tokens).logits
    model = AutoModelForCausalLM.from_pretrained(folder, **WAYS[name])
    weight = model.model.layers[0].mlp.up_proj.weight
    assert weight.device == torch.device("xla", int(os.environ["LOCAL_RANK"]))
    assert weight.to_local().numel() * PROCESSES == weight.numel()
    found = model(input_ids=tokens.to(model.device), labels=tokens.to(model.device))
    found.loss.backward()
    assert weight.grad is not None and weight.grad.to_local().abs().sum().item() > 0
    logits = found.logits.full_tensor() if hasattr(found.logits, "full_tensor") else found.logits
    apart = (logits.cpu() - expected).abs().max().item()
    assert apart < TOLERANCE, apart
    sys.stdout.write(f"{name}: {apart:.1e} from the CPU\n")
    sys.stdout.flush()
    dist.destroy_process_group()


def start() -> None:
    """Saves a small model, and starts `torchrun` for each way to divide it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(folder)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
        for name in WAYS:
            subprocess.run([*torchrun, __file__, name, folder], check=True, env={**os.environ, "PJRT_DEVICE": "CPU"})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compare(*sys.argv[1:])
    else:
        start()
