"""Compile a sample of the parts of `make test-devices` for a TPU that is not here. All parts take half an hour."""

import os
import subprocess
import sys

import pytest

from tests.support.topologies import needs_tpu_compiler


@needs_tpu_compiler
@pytest.mark.parametrize("sample", [
    "layers --every 4", "kernels --every 5", "collectives --every 3", "replicas --every 24",
])  # fmt: skip
def test_a_sample_compiles_for_a_tpu(sample: str) -> None:
    command = [sys.executable, "-m", "tests.devices", *sample.split(), "--on", "v5e"]
    # A process of its own: a fault of the compiler would end this one.
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    part, _ = sample.split(" --")
    counted = next(line for line in done.stdout.splitlines() if line.split()[:2] == ["v5e", part]).split()
    assert counted[2] == counted[4] != "0", done.stdout  # as in "v5e  layers  4 of 4 compile, 4 s"
