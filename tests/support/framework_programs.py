"""Small programs of frameworks on the CPU, to be run where this package is installed and where it is not.

`framework_programs.py hidden` takes the package off the path first; `beside` leaves out what would take the xla device
because the package is there. Prints, as JSON, what each program returned, or what it
raised, with its warnings; of a framework that is not installed, that it is missing.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outcomes import outcome

if sys.argv[1:] == ["hidden"]:
    while found := find_spec("torch_xla"):  # the repository, or an environment that it is installed in by its path
        home = Path(str(found.origin)).parents[1]
        sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != home]

import torch  # noqa: E402  (the path comes first)
from torch import nn  # noqa: E402

programs: dict[str, tuple[tuple[str, ...], Callable[[], Any]]] = {}
x = torch.linspace(-1, 1, 24).reshape(4, 6)
y = torch.tensor([0, 1, 0, 1])


def needs(*modules: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def note(function: Callable[[], Any]) -> Callable[[], Any]:
        programs[function.__name__] = modules, function
        return function

    return note


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))


def rows() -> list[dict[str, Any]]:
    return [{"input_ids": list(range(i, i + 8)), "labels": list(range(i, i + 8))} for i in range(8)]


def small_gpt() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    ).eval()


@needs("transformers")
def transformers_model() -> Any:
    ids = torch.arange(8)[None]
    model = small_gpt()
    model(input_ids=ids, labels=ids).loss.backward()
    return model.generate(ids[:, :3], max_new_tokens=4, do_sample=False, pad_token_id=0).tolist(), str(model.device)


@needs("accelerate")
def transformers_trainer() -> Any:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, use_cpu=True, max_steps=2, logging_steps=1, disable_tqdm=True,
                                      report_to="none", save_strategy="no")  # fmt: skip
        trainer = Trainer(small_gpt(), arguments, train_dataset=rows())
        trainer.train()
        return str(trainer.args.device), [each["loss"] for each in trainer.state.log_history if "loss" in each]


@needs("accelerate")
def accelerate_loop() -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.backward(nn.functional.cross_entropy(model(x), y))
    optimizer.step()
    return str(accelerator.device), accelerator.gather(model(x)).tolist()


@needs("lightning")
def lightning_fit() -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=2)
    trainer = lightning.Trainer(accelerator="auto", max_epochs=1, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(module, data)
    return str(trainer.strategy.root_device), module.network[0].weight.tolist()


@needs("diffusers")
def diffusers_steps() -> Any:
    from diffusers import DDIMScheduler, UNet2DModel

    torch.manual_seed(0)
    model = UNet2DModel(sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=4,
                        block_out_channels=(8, 8), down_block_types=("DownBlock2D", "DownBlock2D"),
                        up_block_types=("UpBlock2D", "UpBlock2D")).eval()  # fmt: skip
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(2)
    images = torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8)
    with torch.no_grad():
        for time in scheduler.timesteps:
            images = scheduler.step(model(images, time).sample, time, images).prev_sample
    return images.sum().item()


@needs("peft")
def peft_adapters() -> Any:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(network(), LoraConfig(r=2, target_modules=["0", "2"]))
    return model(x).tolist(), model.get_nb_trainable_parameters()


@needs("torchmetrics")
def torchmetrics_values() -> Any:
    from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

    return MulticlassAccuracy(2)(x[:, :2], y).item(), MulticlassConfusionMatrix(2)(x[:, :2], y).tolist()


@needs("timm", "torchvision")
def timm_model() -> Any:
    import timm

    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=2)
    return model.eval()(torch.ones(1, 3, 16, 16)).sum().item()


@needs("torch_geometric")
def geometric_layer() -> Any:
    from torch_geometric.nn import GATConv

    torch.manual_seed(0)
    return GATConv(6, 2)(x, torch.tensor([[0, 1, 2], [1, 2, 3]])).tolist()


@needs("sentence_transformers")
def sentence_embeddings() -> Any:
    from sentence_transformers.util import cos_sim, get_device_name

    return get_device_name(), cos_sim(x, x).tolist()


@needs("ignite")
def ignite_engine() -> Any:
    from ignite.engine import create_supervised_trainer

    model = network()
    trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy)
    return trainer.run([(x, y)], max_epochs=2).output


@needs("trl")
def trl_imports() -> Any:
    from trl import SFTConfig

    return SFTConfig.__name__


def run(modules: tuple[str, ...], function: Callable[[], Any]) -> tuple[str, list[str]]:
    if any(find_spec(module) is None for module in modules):
        return "missing", []
    result, told = outcome(function)
    # Warnings of frameworks to themselves come once in a process, and more of them where more of theirs is imported.
    return result, sorted({each for each in told if "xla" in each.lower()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    if sys.argv[1:] == ["beside"]:  # Accelerate takes the xla device then
        programs = {name: each for name, each in programs.items() if "accelerate" not in each[0]}
    results = {name: run(*each) for name, each in programs.items()}
    if "torch_xla" in sys.modules:
        import torch_xla

        assert not torch_xla._XLAC._xla_runtime_is_initialized(), "a client was started"
    print(json.dumps(results))
