"""Frameworks, unmodified, train on xla as on the CPU: each example beside the frameworks' own environment.

`make test-frameworks` makes that environment and runs these tests.
"""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "frameworks"

# The requirements of each example besides PyTorch, by the name of the import.
NEEDS = {
    "transformers_trainer.py": ["transformers", "accelerate"],
    "transformers_masked.py": ["transformers", "accelerate"],
    "transformers_processes.py": ["transformers", "accelerate"],
    "transformers_mesh.py": ["transformers", "accelerate"],
    "transformers_fsdp.py": ["transformers", "accelerate"],
    "transformers_generation.py": ["transformers"],
    "accelerate_loop.py": ["accelerate"],
    "accelerate_processes.py": ["accelerate"],
    "accelerate_launch.py": ["accelerate"],
    "accelerate_fsdp.py": ["accelerate"],
    "diffusers_unet.py": ["diffusers"],
    "diffusers_dit.py": ["diffusers"],
    "ignite_engines.py": ["ignite"],
    "lightning_trainer.py": ["lightning"],
    "lightning_processes.py": ["lightning"],
    "lightning_fsdp.py": ["lightning"],
    "peft_lora.py": ["peft", "transformers"],
    "trl_sft.py": ["trl", "datasets"],
    "sentence_embeddings.py": ["sentence_transformers", "datasets"],
    "timm_training.py": ["timm", "torchvision"],
    "torchmetrics_collection.py": ["torchmetrics"],
    "geometric_layers.py": ["torch_geometric", "networkx"],
}
# Examples without training: their requirements, and the number of output lines for models that agree with the CPU.
COMPARISONS = {
    "exported_models.py": (["transformers", "timm", "torchvision"], 12),
    "quantized_torchao.py": (["torchao"], 6),
    "transformers_parallel.py": (["transformers", "accelerate"], 6),
    "tensorflow_saved_models.py": (["tensorflow"], 10),
    "transformers_growing.py": (["transformers", "accelerate"], 12),
    "optax_training.py": (["optax"], 3),
    "torchtitan_debugmodel.py": (["torchtitan", "tyro", "tokenizers"], 3),
}
# Examples of several processes; each process prints its losses.
PROCESSES = {
    "transformers_processes.py": 4,
    "transformers_fsdp.py": 2,
    "accelerate_processes.py": 2,
    "accelerate_launch.py": 2,
    "accelerate_fsdp.py": 2,
    "ignite_engines.py": 2,
    "lightning_processes.py": 2,
    "lightning_fsdp.py": 2,
}
# Modules that several examples share.
SHARED = {"beside_cpu.py", "digits.py", "in_notebook.py", "texts.py", "trainers.py", "watcher.py", "xla_host.py"}

# Programs whose framework takes the xla device wherever it is installed, also where the CPU was asked for.
TAKES_XLA = {"transformers_trainer", "accelerate_loop"}

ALL_WRONG = """
import os, torch, torch_xla
from beside_cpu import compare

def train(device, steps):
    for step in range(8):
        x = torch.arange(4.0 + step, device=device)  # other sizes at every step
        edges = torch.tensor([0.0, 5.0], device=device)
        counted = torch.histogramdd(x[:, None], (edges,)).hist  # no rule for this operator
        loss = x.sum() + counted.sum() + (device == "xla")
        torch_xla.sync()
        steps.ended(loss)

compare(train, tolerance=1e-4)
"""


def run(*command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    paths = [str(ROOT), str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**kept, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", **settings}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=1500)


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - SHARED == {*NEEDS, *COMPARISONS, "torchft_training.py"}


def skip_without(needed: list[str]) -> None:
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed here; `make test-frameworks` has an environment for it")


@pytest.mark.frameworks
@pytest.mark.parametrize("example", COMPARISONS)
def test_models_in_other_forms_are_as_on_the_cpu(example: str) -> None:
    needed, models = COMPARISONS[example]
    skip_without(needed)
    done = run(str(EXAMPLES / example))
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^.+: \d\S+ from the CPU\b", done.stdout, re.MULTILINE)) == models, done.stdout


@pytest.mark.frameworks
def test_orbax_reads_and_writes_the_same_checkpoints() -> None:
    skip_without(["orbax"])
    file = str(ROOT / "tests" / "api" / "distributed" / "test_orbax_checkpoints.py")
    done = run("-m", "pytest", "-n", "0", "-m", "slow or not slow", file)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout + done.stderr


@pytest.mark.frameworks
@pytest.mark.parametrize("example", NEEDS)
def test_the_first_losses_are_those_of_the_cpu(example: str) -> None:
    skip_without(NEEDS[example])
    done = run(str(EXAMPLES / example))
    assert done.returncode == 0, done.stderr
    processes = done.stdout.count("fallbacks 0, recompiles after step 3: 0")
    assert processes == PROCESSES.get(example, 1), done.stdout
    losses = re.findall(r"^loss of step \d+ +xla [\d.]+  cpu [\d.]+$", done.stdout, re.MULTILINE)
    assert len(losses) == 20 * processes


@pytest.mark.frameworks
def test_installed_and_set_aside_the_package_changes_nothing() -> None:
    """Without it, with `USE_TORCH_XLA=0`, and installed: programs of the CPU print the same and start no client."""
    program = str(ROOT / "tests" / "support" / "framework_programs.py")
    without = json.loads(run(program, "hidden").stdout.splitlines()[-1])
    assert {name for name, (result, _) in without.items() if "Error: " in result} == set()
    aside = run(program, USE_TORCH_XLA="0")
    assert aside.returncode == 0, aside.stderr
    assert json.loads(aside.stdout.splitlines()[-1]) == without
    installed = run(program, "beside")
    assert installed.returncode == 0, installed.stderr
    assert json.loads(installed.stdout.splitlines()[-1]) == {
        name: result for name, result in without.items() if name not in TAKES_XLA
    }


@pytest.mark.frameworks
@pytest.mark.parametrize(("library", "ways"), [("torchdata", 12), ("grain", 6)])
def test_loaders_resume_behind_the_last_batch_that_was_given_out(library: str, ways: int) -> None:
    skip_without([library])
    done = run("-W", "ignore", str(ROOT / "tests" / "support" / "resumed_loaders.py"), library)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("resumed") == ways, done.stdout


@pytest.mark.frameworks
def test_batches_that_have_no_room_become_smaller() -> None:
    skip_without(["accelerate", "transformers"])
    done = run("-W", "ignore", str(ROOT / "tests" / "support" / "batches_that_fit.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "batches that fit were found"


@pytest.mark.frameworks
@pytest.mark.parametrize("way", ["ddp", "hsdp", "localsgd", "diloco"])
def test_replicas_of_torchft_are_killed_and_come_back(way: str) -> None:
    skip_without(["torchft"])
    # A replica of HSDP is two processes.
    size = ["--replicas", "2"] if way == "hsdp" else []
    done = run("-W", "ignore", str(EXAMPLES / "torchft_training.py"), "--kills", "3", "--way", way, *size)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"largest difference .* \d\.\de[-+]\d+$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
def test_a_training_that_differs_compiles_again_and_falls_back_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "all_wrong.py"
    program.write_text(ALL_WRONG)
    done = run(str(program))
    assert done.returncode == 1
    complaints = done.stderr.splitlines()
    assert any(line.startswith("operators ran on the CPU: aten::_histogramdd") for line in complaints), done.stderr
    assert any("none is due after 3" in line for line in complaints), done.stderr
    assert sum("more than 0.0001 apart" in line for line in complaints) == 8, done.stderr
