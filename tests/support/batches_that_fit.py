"""Choose a batch that fits by Accelerate and by the Trainer of Transformers, on a machine with very little memory."""

import tempfile
from typing import Any

import torch
from accelerate.utils import find_executable_batch_size
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

import torch_xla
from torch_xla._engine.compile import oversized_values

oversized_values.host_memory = lambda: 300_000


def choose_by_accelerate() -> None:
    tried = []

    @find_executable_batch_size(starting_batch_size=1 << 18)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        model = torch.nn.Linear(8, 8).to("xla")
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(batch_size, 8, device="xla")).square().mean().backward()
            optimizer.step()
            torch_xla.sync()
        assert model.weight.isfinite().all()
        return batch_size

    assert train() == tried[-1] < tried[0]


class Watched(Trainer):  # type: ignore[misc]
    """A Trainer that notes the sizes of its batches. Its model lives on when a batch was too large."""

    def training_step(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *args: Any) -> torch.Tensor:
        self.tried.append(len(inputs["input_ids"]))
        loss: torch.Tensor = super().training_step(model, inputs, *args)
        return loss


def choose_by_the_trainer() -> None:
    set_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, max_position_embeddings=64)  # fmt: skip
    rows = [{name: torch.randint(0, 64, (32,)) for name in ("input_ids", "labels")} for _ in range(128)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, per_device_train_batch_size=96, auto_find_batch_size=True, max_steps=4,
                                      report_to=[], save_strategy="no", disable_tqdm=True)  # fmt: skip
        trainer = Watched(model=LlamaForCausalLM(config), args=arguments, train_dataset=rows)
        trainer.tried = []
        loss = trainer.train().training_loss
    assert trainer.args.device.type == "xla" and trainer.tried[-1] < trainer.tried[0] == 96
    assert 3.5 < loss < 4.7  # a model that knows nothing yet has the logarithm of 64, which is 4.16


choose_by_accelerate()
choose_by_the_trainer()
print("batches that fit were found")
