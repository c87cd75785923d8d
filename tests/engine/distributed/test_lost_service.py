"""If the coordination service is killed, each process raises an error, and none crashes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.distributed.test_failures import settings

PROGRAM = """
import os, pathlib, signal, sys, time
import torch, torch_xla, torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def service():
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            said = (folder / "cmdline").read_text()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if "jax_coordination_server.py" in said and parent == os.getppid():
            return int(folder.name)

def main(index, folder):
    x = torch.ones(4, device="xla")
    begin = time.monotonic()
    try:
        xm.all_reduce(xm.REDUCE_SUM, x).tolist()
        if index == 1:  # others may still wait for theirs
            os.kill(service(), signal.SIGKILL)
        while time.monotonic() - begin < 60:
            xm.all_reduce(xm.REDUCE_SUM, x).tolist()
            time.sleep(0.1)
    except RuntimeError as error:
        took = time.monotonic() - begin
        kept = x.tolist()  # what depends on no other process can be read
        time.sleep(2)  # and nothing ends it
        with open(os.path.join(folder, str(index)), "w") as file:
            file.write(f"{took:.1f} {kept} {type(error).__name__}: {error}")
        while len(os.listdir(folder)) < 3 and time.monotonic() - begin < 90:
            time.sleep(0.1)  # the first process that ends has the others ended
        raise

if __name__ == "__main__":
    try:
        xmp.spawn(main, (sys.argv[1],), nprocs=3, start_method="fork")
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_a_lost_service_is_an_error_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    said = tmp_path / "said"
    said.mkdir()
    result = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(said)],
        env=settings(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    raised = {path.name: path.read_text() for path in said.iterdir()}
    assert sorted(raised) == ["0", "1", "2"], result.stdout + result.stderr
    for index, text in raised.items():
        took, rest = text.split(" ", 1)
        assert float(took) < 60  # and not after the time that a collective may take
        assert re.match(
            r"\[1\.0, 1\.0, 1\.0, 1\.0\] PeerError: The service at 127\.0\.0\.1:\d+, by which the processes of the "
            r"program speak, is gone: it closed the connection\. Its process was ended, or its machine, which is that "
            rf"of process 0, is lost\.\nProcess {index} of 3 raises this at step \d+, \S+program\.py:\d+ in main\.",
            rest,
        ), text
    assert "PeerError: The service at" in result.stdout and "SIGABRT" not in result.stdout + result.stderr
