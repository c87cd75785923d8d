"""LoRA by peft: a small Llama of random weights, whose adapters alone learn Python's language reference.

    python examples/frameworks/peft_lora.py

After the training the adapters are saved, loaded into a fresh model and merged into its weights.
"""

import tempfile
from pydoc_data.topics import topics

import torch
from beside_cpu import Steps, compare
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import torch_xla

LENGTH, BATCH = 64, 8


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH)  # fmt: skip
    return LlamaForCausalLM(config)


def batches(count: int) -> torch.Tensor:
    text = "\n".join(topics.values()).encode()[: count * BATCH * LENGTH]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(count, BATCH, LENGTH)


def train(device: str, steps: Steps) -> dict[str, float]:
    adapters = LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj", "up_proj", "lm_head"])
    model = get_peft_model(llama(), adapters).to(device)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    data = batches(21)
    for batch in data[:20]:
        batch = batch.to(device)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        steps.ended(loss)

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        merged = PeftModel.from_pretrained(llama(), folder).to(device).merge_and_unload()
    held_out = data[20].to(device)
    with torch.no_grad():
        before = llama().to(device)(input_ids=held_out, labels=held_out).loss.item()
        adapted = model.eval()(input_ids=held_out, labels=held_out).loss.item()
        after = merged.eval()(input_ids=held_out, labels=held_out).loss.item()
    assert after < before and abs(after - adapted) < 1e-4
    return {"held out, before": before, "held out, adapted": adapted, "held out, merged": after}


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
