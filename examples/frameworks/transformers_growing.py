"""Transformers with sizes that grow, are fixed or are packed.

`generate` with its default cache, and with a static one and a `CompileConfig`; after a `Trainer`; `generate_batch`;
training without padding.

python examples/frameworks/transformers_growing.py
"""

import copy
import tempfile

import torch
from transformers import (
    CompileConfig,
    DataCollatorWithFlattening,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import torch_xla
import torch_xla.debug.metrics as met

TOKENS = 128
MOST_PROGRAMS = 10
MOST_PROGRAMS_PADDED = 16  # Transformers looks whether the mask has zeros, for each token
REQUESTS = 50
MOST_PROGRAMS_OF_REQUESTS = 12


def llama(attention: str, spread: float) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=128, max_position_embeddings=512, initializer_range=spread,
        attn_implementation=attention))  # fmt: skip


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=512, n_embd=64, n_layer=2, n_head=4,
                                      initializer_range=0.3))  # fmt: skip


def programs() -> int:
    return met.counter_value("UncachedCompile") or 0


def generate(name: str, model: LlamaForCausalLM | GPT2LMHeadModel, padding: int = 0, **more: int) -> None:
    """Writes two texts with the cache that `generate` chooses by itself; the second prompt may be padded."""
    model.eval()
    prompts = torch.randint(1, 128, (2, 7))
    mask = torch.ones_like(prompts)
    prompts[1, :padding] = mask[1, :padding] = 0
    options = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **more}
    expected = model.generate(prompts, attention_mask=mask, **options)
    model.to("xla")
    compiled = []
    for _ in range(2):
        before = programs()
        found = model.generate(prompts.to("xla"), attention_mask=mask.to("xla"), **options).cpu()
        compiled.append(programs() - before)
    most = MOST_PROGRAMS if not padding else MOST_PROGRAMS_PADDED
    assert compiled[0] <= most and compiled[1] == 0, compiled
    different = (found != expected).sum().item()
    print(f"{name}, default cache: {different:.1f} from the CPU ({compiled[0]} programs for {TOKENS} tokens)")
    assert different == 0


def generate_after_training(name: str, model: LlamaForCausalLM) -> None:
    """Trains with a `Trainer`; the second call of `generate` finds every program."""
    prompt = torch.randint(1, 128, (1, 7))
    texts = [{"input_ids": row, "labels": row} for row in torch.randint(1, 128, (8, 16))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, max_steps=2, per_device_train_batch_size=2, report_to=[],
                                      save_strategy="no", disable_tqdm=True)  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=texts)
        trainer.train()
    assert model.device.type == "xla"
    model.eval()
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    compiled = []
    for _ in range(3):
        before = programs()
        found = model.generate(prompt.to("xla"), attention_mask=torch.ones_like(prompt).to("xla"), **options).cpu()
        compiled.append(programs() - before)
    expected = copy.deepcopy(model).cpu().generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    different = (found != expected).sum().item()
    print(f"{name}, after a Trainer: {different:.1f} from the CPU ({compiled[0]} programs)")
    assert different == 0 and compiled[0] <= MOST_PROGRAMS and not any(compiled[1:]), compiled


def generate_batches(name: str, model: LlamaForCausalLM) -> None:
    """Answers requests of many lengths in batches that change, with a cache sized by what they need."""
    model.eval()
    reference = copy.deepcopy(model)
    model.to("xla")
    lengths = torch.randint(3, 40, (REQUESTS,)).tolist()
    requests = [torch.randint(1, 128, (length,)).tolist() for length in lengths]
    options = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0)
    compiled, different = [], 0
    for half in (requests[: REQUESTS // 2], requests[REQUESTS // 2 :]):
        before = programs()
        answers = model.generate_batch(inputs=half, generation_config=options, progress_bar=False)
        compiled.append(programs() - before)
        for request, answer in zip(half, answers.values(), strict=True):
            expected = reference.generate(torch.tensor([request]), max_new_tokens=12, do_sample=False,
                                          eos_token_id=None, pad_token_id=0)  # fmt: skip
            different += answer.generated_tokens != expected[0, len(request) :].tolist()
    held = torch.accelerator.max_memory_allocated() >> 20
    print(f"{name}, {REQUESTS} requests: {different:.1f} from the CPU ({compiled[0]} programs, {held} MB)")
    assert different == 0 and compiled[0] <= MOST_PROGRAMS_OF_REQUESTS and compiled[1] == 0, compiled
    assert held < 1000, held  # it took all of the memory


def generate_compiled(name: str, model: LlamaForCausalLM | GPT2LMHeadModel, config: CompileConfig) -> None:
    """Writes two texts, one of a padded prompt, with a cache of fixed size and a compiled model."""
    model.eval()
    prompts = torch.randint(1, 128, (2, 7))
    mask = torch.ones_like(prompts)
    prompts[1, :3] = mask[1, :3] = 0
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(prompts, attention_mask=mask, **options)
    model.to("xla")
    compiled = []
    for _ in range(2):
        before = programs()
        found = model.generate(prompts.to("xla"), attention_mask=mask.to("xla"), cache_implementation="static",
                               compile_config=config, **options).cpu()  # fmt: skip
        compiled.append(programs() - before)
    different = (found != expected).sum().item()
    print(f"{name}, static cache: {different:.1f} from the CPU ({compiled[0]} programs)")
    assert hasattr(model, "_compiled_call")
    assert different == 0 and compiled[0] <= MOST_PROGRAMS_PADDED and compiled[1] == 0, compiled


def train_packed(attention: str) -> None:
    """Compares the gradients of one row of packed sequences with those of padded sequences on the CPU."""
    reference = llama("eager", 0.02).train()
    model = copy.deepcopy(reference).to("xla")
    model.set_attn_implementation(attention)
    sequences = [torch.randint(1, 128, (length,)) for length in (5, 9, 3)]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    mask = (ids > 0).long()
    expected = reference(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
    expected.backward()
    collate = DataCollatorWithFlattening(return_tensors="pt")
    packed = collate([{"input_ids": sequence.tolist()} for sequence in sequences])
    # With a cache, the model does not look at the positions for the ends of sequences.
    loss = model(**{name: tensor.to("xla") for name, tensor in packed.items()}, use_cache=False).loss
    loss.backward()
    torch_xla.sync()
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    apart = max((ours.grad.cpu() - theirs.grad).abs().max().item() for ours, theirs in pairs)
    apart = max(apart, abs(loss.item() - expected.item()))
    print(f"{attention}, packed sequences: {apart:.1e} from the CPU")
    assert apart < 1e-5


if __name__ == "__main__":
    torch.manual_seed(0)
    generate("Llama", llama("sdpa", 0.3))
    generate("GPT-2", gpt2())
    generate("Llama, attention without a kernel", llama("eager", 0.3))
    generate("Llama, a padded prompt", llama("sdpa", 0.3), padding=3)
    generate("Llama, beams", llama("sdpa", 0.3), num_beams=4)
    generate_after_training("Llama", llama("sdpa", 0.3))
    generate_batches("Llama", llama("sdpa", 0.3))
    generate_compiled("Llama, compiled", llama("sdpa", 0.3), CompileConfig())
    generate_compiled("GPT-2, one graph", gpt2(), CompileConfig(fullgraph=True, dynamic=False, mode="default"))
    for attention in ("sdpa", "eager", "flex_attention"):
        train_packed(attention)
