"""XLA:CPU gives on every processor the results of those without conversions to bfloat16 by one instruction."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT
from torch_xla._engine.runtime import cpu_instructions
from torch_xla._engine.runtime.cpu_instructions import common_to_processors

# A sort and a loop over elements, each of which converts one at a time.
_PROGRAM = """
import json, os
import torch, torch_xla
from torch_xla.experimental.scan import scan
x = torch.tensor([0.0, 1e-40, -1e-40, 1.0], dtype=torch.bfloat16)
wide = torch.tensor([1e-40, 1.0]).to("xla")
_, made = scan(lambda carry, each: (carry, each.bfloat16()), torch.zeros((), device="xla"), wide)
found = [x.to("xla").sort(stable=True).values.cpu(), made.cpu()]
expected = [x.sort(stable=True).values, wide.cpu().bfloat16()]
print(json.dumps([[list(map(torch.equal, found, expected))], os.environ.get("XLA_FLAGS")]))
"""


# Where JAX starts first, XLA has read its options before.
_JAX_FIRST = "import jax; jax.devices()\n"


@pytest.fixture(autouse=True)
def no_client_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_instructions, "has_client", lambda: False)
    monkeypatch.setattr(cpu_instructions, "_are_common", False)


@pytest.mark.parametrize("flags", [None, "--xla_backend_optimization_level=1"])
def test_the_option_is_set_while_a_client_starts(monkeypatch: pytest.MonkeyPatch, flags: str | None) -> None:
    if flags is None:
        monkeypatch.delenv("XLA_FLAGS", raising=False)
    else:
        monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with common_to_processors():
        assert os.environ["XLA_FLAGS"].split() == [*(flags or "").split(), "--xla_cpu_max_isa=AVX512"]
    assert os.environ.get("XLA_FLAGS") == flags
    assert cpu_instructions.instructions_in_force() == "common"


def test_a_client_that_runs_has_read_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(cpu_instructions, "has_client", lambda: True)
    with common_to_processors():
        assert "XLA_FLAGS" not in os.environ
    assert cpu_instructions.instructions_in_force() == "the processor's"


def test_other_processors_and_what_the_user_chose_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    with common_to_processors():
        assert os.environ["XLA_FLAGS"] == "--xla_cpu_max_isa=AVX2"
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with common_to_processors():
        assert "XLA_FLAGS" not in os.environ


@pytest.mark.slow
def test_single_elements_keep_their_subnormal_numbers_whoever_compiled_before(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU", "XLA_PERSISTENT_CACHE_PATH": str(tmp_path)}
    for program in (_JAX_FIRST + _PROGRAM, _PROGRAM):
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[[True, True]], None]
