"""Two processes of two devices each train what one process with four trains."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import compiler, forked
from torch_xla.utils.utils import get_free_tcp_ports

PROGRAM = """
import sys, warnings, runpy
warnings.resetwarnings()
sys.argv[1:] = ["."]
runpy.run_module("tests.support.{}", run_name="__main__")
"""


def run(folder: Path, count: int, program: str = "spmd_processes") -> list[Any]:
    """Run a program of `tests.support` over four devices in `count` processes with `torchrun`'s variables.

    Return what each process saved. That of `spmd_processes` is the losses, the sums of its parameters, and the numbers
    of programs compiled and found on disk.
    """
    (folder / "program.py").write_text(PROGRAM.format(program))
    told = {name: value for name, value in os.environ.items() if not name.startswith(("PJRT_", "XLA_", "CPU_"))}
    told["XLA_FLAGS"] = compiler.with_devices(4 // count)
    if count > 1:
        (port,) = get_free_tcp_ports()
        told |= {"TORCHELASTIC_RUN_ID": "spmd", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        told |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}

    def one(index: int) -> subprocess.CompletedProcess[str]:
        own = told if count == 1 else {**told, "RANK": str(index), "LOCAL_RANK": str(index)}
        return forked.run("program.py", environment=own, folder=folder)

    with ThreadPoolExecutor(count) as pool:
        for done in pool.map(one, range(count)):
            assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"{count}-{process}.pt") for process in range(count)]


@pytest.mark.slow
def test_two_processes_train_what_one_does_and_compile_it_once(tmp_path: Path) -> None:
    ((one, sums, _),) = run(tmp_path, 1)
    first = run(tmp_path, 2)
    for losses, others, (compiled, found) in first:
        torch.testing.assert_close(losses, one, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(others, sums, rtol=1e-3, atol=1e-3)
        assert compiled > 5 and found == 0
    programs = first[0][2][0]

    # If one of them lacks a program, both compile this one, and nothing else.
    (damaged, *_) = sorted((tmp_path / "cache-1").glob("*.xla"), key=lambda path: path.stat().st_size, reverse=True)
    damaged.write_bytes(damaged.read_bytes()[:-100])
    assert [each[2] for each in run(tmp_path, 2)] == [(1, programs - 1)] * 2

    again = run(tmp_path, 2)
    assert [each[2] for each in again] == [(0, programs)] * 2
    assert [each[:2] for each in again] == [each[:2] for each in first]
