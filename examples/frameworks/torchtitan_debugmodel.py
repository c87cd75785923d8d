"""TorchTitan's debug model, from its own training script: one process, FSDP2 and tensor parallelism in two processes.

    python examples/frameworks/torchtitan_debugmodel.py

Every training starts from the weights of one seed checkpoint, which TorchTitan makes. It saves itself after `SAVED`
steps, and new processes go on from there. The losses are those of the same model, data and optimizer on the CPU, and no
step after the third compiles. TorchTitan's package lacks the text and the
tokenizer of its tests: `write_assets` makes others.
"""

import json
import logging
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SAVED, STEPS = 6, 8
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # to compile
SETTLED = 3  # no later step of an unbroken training compiles
TOLERANCE = 1e-4
# By name: the number of processes, and the flags of TorchTitan.
WAYS: dict[str, tuple[int, list[str]]] = {
    "one process": (1, []),
    "FSDP2": (2, []),
    "tensor parallelism": (2, ["--parallelism.tensor_parallel_degree=2"]),
}
FLAGS = [
    "--model.name=llama3",
    "--model.flavor=debugmodel",
    "--training.seq_len=128",
    "--training.local_batch_size=2",
    "--training.mixed_precision_param=float32",
    "--optimizer.lr=8e-4",
    "--lr_scheduler.warmup_steps=2",
    f"--lr_scheduler.total_steps={STEPS}",
    "--metrics.log_freq=1",
    "--checkpoint.enable",
    "--checkpoint.interval=1000",  # the last step is saved in any case, and by this with the optimizer:
    "--checkpoint.no-last-save-model-only",
]


def write_assets(folder: Path) -> list[str]:
    """Writes a text of drawn words, and a tokenizer of it; returns the flags that name them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    drawn = random.Random(0)
    words = ["".join(drawn.choices("aeioubdgklmnprst", k=drawn.randint(2, 9))) for _ in range(900)]
    texts = [" ".join(drawn.choices(words, k=drawn.randint(20, 300))) for _ in range(400)]
    (folder / "text").mkdir()
    (folder / "text" / "data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    names = json.dumps(dict(zip(["bos_token", "eos_token"], special, strict=True)))
    (folder / "tokenizer" / "tokenizer_config.json").write_text(names)
    data = ["--training.dataset=c4_test", f"--training.dataset_path={folder / 'text'}"]
    return [f"--model.hf_assets_path={folder / 'tokenizer'}", *data]


class Steps(logging.Filter):
    """Adds to each of TorchTitan's lines about a step how many programs had been compiled by then."""

    def filter(self, record: logging.LogRecord) -> bool:
        import torch_xla.debug.metrics as met

        if "grad_norm" in str(record.msg):
            record.msg += f" programs: {met.counter_value('UncachedCompile') or 0}"
        return True


def train_as_torchtitan_does() -> None:
    """Runs TorchTitan's training script with the flags of this process."""
    import torch_xla  # noqa: F401

    logging.getLogger().addFilter(Steps())
    runpy.run_module("torchtitan.train", run_name="__main__")


def run(processes: int, flags: list[str]) -> tuple[dict[int, float], dict[int, int]]:
    """Starts a training by `torchrun`; returns the losses of its steps, and the programs that had been compiled."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    settings = {"PJRT_DEVICE": "CPU", "HF_HUB_OFFLINE": "1", "TRAINS": "1", "XLA_FLAGS": QUICK}
    done = subprocess.run([sys.executable, *torchrun, __file__, *flags], env={**os.environ, **settings},
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    found = re.findall(r"step: *(\d+) .*?loss: *([\d.]+) .*programs: (\d+)", done.stdout)
    losses: dict[int, set[float]] = {}
    programs: dict[int, int] = {}
    for step, loss, compiled in found:
        losses.setdefault(int(step), set()).add(float(loss))
        programs[int(step)] = max(programs.get(int(step), 0), int(compiled))
    assert all(len(each) == 1 for each in losses.values()), losses  # all processes log the mean of all
    return {step: each.pop() for step, each in losses.items()}, programs


def losses_of_the_cpu(flags: list[str], seed: Path, parts: int) -> dict[int, float]:
    """The losses of TorchTitan's model on the CPU, whose batches are `parts` batches of TorchTitan's loaders."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torchtitan.components.loss import IGNORE_INDEX, cross_entropy_loss
    from torchtitan.config import ConfigManager
    from torchtitan.protocols.train_spec import get_train_spec

    config = ConfigManager().parse_args(flags)
    spec: Any = get_train_spec("llama3")
    sizes = spec.model_args["debugmodel"]
    sizes.update_from_config(config)
    model = spec.model_cls(sizes)
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cpu"))
    dcp.load(model.state_dict(), checkpoint_id=seed / "checkpoint" / "step-0")
    optimizers = spec.build_optimizers_fn([model], config.optimizer, None)
    schedulers = spec.build_lr_schedulers_fn(optimizers, config.lr_scheduler, STEPS)
    tokenizer = spec.build_tokenizer_fn(config)
    loaders = [
        iter(spec.build_dataloader_fn(dp_world_size=parts, dp_rank=part, tokenizer=tokenizer, job_config=config))
        for part in range(parts)
    ]
    losses = {}
    for step in range(1, STEPS + 1):
        batches = [next(loader) for loader in loaders]
        tokens = torch.cat([inputs["input"] for inputs, _ in batches])
        labels = torch.cat([each for _, each in batches])
        optimizers.zero_grad()
        loss = cross_entropy_loss(model(tokens), labels) / (labels != IGNORE_INDEX).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.training.max_norm)
        optimizers.step()
        schedulers.step()
        losses[step] = loss.item()
    return losses


def compare(name: str, flags: list[str], seed: Path) -> None:
    """Trains in one way, saves, goes on in new processes, and compares with the CPU."""
    processes, more = WAYS[name]
    folder = seed.parent / name.replace(" ", "_")
    shutil.copytree(seed, folder)
    flags = [*flags, *more, f"--job.dump_folder={folder}"]
    losses, programs = run(processes, [*flags, f"--training.steps={SAVED}"])
    resumed, _ = run(processes, [*flags, f"--training.steps={STEPS}"])
    assert min(resumed) == SAVED + 1, resumed
    expected = losses_of_the_cpu(flags, seed, 2 if name == "FSDP2" else 1)
    assert {*losses, *resumed} == {*expected}, (losses, resumed)
    apart = max(abs(loss - expected[step]) for step, loss in (losses | resumed).items())
    assert apart <= TOLERANCE, (losses, resumed, expected)
    assert programs[SAVED] == programs[SETTLED], programs
    print(f"{name}: {apart:.1e} from the CPU ({programs[SAVED]} programs)", flush=True)


def main() -> None:
    """Makes the seed checkpoint, and compares each way."""
    with tempfile.TemporaryDirectory() as place:
        flags = [*FLAGS, *write_assets(Path(place))]
        seed = Path(place, "seed")
        run(1, [*flags, "--checkpoint.create_seed_checkpoint", f"--job.dump_folder={seed}"])
        for name in sys.argv[1:] or WAYS:
            compare(name, flags, seed)


if __name__ == "__main__":
    if os.environ.get("TRAINS"):
        train_as_torchtitan_does()
    else:
        main()
