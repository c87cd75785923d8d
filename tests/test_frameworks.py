"""Frameworks, unmodified, train on xla as on the CPU: each example beside the frameworks' own environment.

`make test-frameworks` makes that environment and runs these tests.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "frameworks"

# What each example needs besides PyTorch, by the name that is imported.
NEEDS = {
    "transformers_trainer.py": ["transformers", "accelerate"],
    "accelerate_loop.py": ["accelerate"],
    "diffusers_unet.py": ["diffusers"],
    "lightning_trainer.py": ["lightning"],
    "peft_lora.py": ["peft", "transformers"],
}

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


def run(*command: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    paths = [str(ROOT), str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**kept, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=900)


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - {"beside_cpu.py"} == set(NEEDS)


@pytest.mark.frameworks
@pytest.mark.parametrize("example", NEEDS)
def test_the_first_losses_are_those_of_the_cpu(example: str) -> None:
    missing = [name for name in NEEDS[example] if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed here; `make test-frameworks` has an environment for it")
    done = run(str(EXAMPLES / example))
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^loss of step \d+ +xla [\d.]+  cpu [\d.]+$", done.stdout, re.MULTILINE)) == 20
    assert "fallbacks 0, recompiles after step 3: 0" in done.stdout


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
