"""When a process of a program fails, the others name it, and end."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]

PROGRAM = """
import os, sys, time
import torch, torch_xla, torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def come(index, how, folder):
    "Says that this process has come here, and waits for the others; who waits from here on waits less long."
    name = f"{folder}.came-{how}-"
    open(name + str(index), "w").close()
    while not all(os.path.exists(name + str(each)) for each in range(3)):
        time.sleep(0.02)
    if how in ("never", "apart"):
        os.environ["XLA_COLLECTIVE_TIMEOUT"] = "5"

def fail(index, how, folder):
    if index == 1:
        if how == "kill":
            time.sleep(5)  # so that what it last said of itself is of this line
            os.kill(os.getpid(), 9)
        if how == "raise":
            raise KeyError("what was wrong")
        if how == "never":
            time.sleep(1000)
        if how == "leave":
            return False
    return True

def main(index, how, folder):
    if how == "apart":
        torch_xla._XLAC._ensure_xla_coordinator_initialized(index, 3)
        come(index, how, folder)
        if index == 1:
            time.sleep(1000)  # it has met the others, and uses no device
    x = torch.ones(4, device="xla")
    for step in range(4):
        total = xm.all_reduce(xm.REDUCE_SUM, x)
        torch_xla.sync()
    assert total.tolist() == [3.0] * 4
    come(index, how, folder)
    if not fail(index, how, folder):
        return
    if how == "differ" and index == 1:
        torch_xla.sync()
        xm.all_reduce(xm.REDUCE_MAX, x)
    total = xm.all_reduce(xm.REDUCE_SUM, x)
    torch_xla.sync()
    total.tolist()

def noted(index, how, folder):
    try:
        main(index, how, folder)
    except RuntimeError as error:
        with open(os.path.join(folder, f"{how}-{index}"), "w") as file:
            file.write(f"{type(error).__name__}: {error}")
        raise

def spawn(how, folder):
    try:
        xmp.spawn(noted, (how, folder), nprocs=3, start_method="fork")
    except Exception as error:
        with open(os.path.join(folder, how), "w") as file:
            file.write(f"{type(error).__name__}: {error}")

if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        torch_xla.launch(noted, args=(sys.argv[1], sys.argv[2]))
    elif sys.argv[1] == "interrupt":
        xmp.spawn(noted, ("never", sys.argv[2]), nprocs=3, start_method="fork")
    else:
        for how in sys.argv[1].split(","):
            spawn(how, sys.argv[2])
"""


def settings(**more: str) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", **more
    }  # fmt: skip


def run(folder: Path, command: list[str], how: str, **more: str) -> tuple[int, dict[str, str]]:
    """The exit code, and what each process and the parent raised, by what went wrong and who they are."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    said = folder / "said"
    said.mkdir()
    result = subprocess.run(
        [*command, str(program), how, str(said)],
        env=settings(**more), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return result.returncode, {path.name: path.read_text() for path in said.iterdir()}


def line_of(text: str) -> int:
    return 1 + PROGRAM[: PROGRAM.index(text)].count("\n")


@pytest.mark.slow
def test_each_process_and_the_parent_name_the_one_that_failed(tmp_path: Path) -> None:
    _, said = run(tmp_path, [sys.executable], "kill,raise,differ,never,apart")
    slept = line_of("time.sleep(5)")
    for name in ("kill-0", "kill-2", "kill"):
        assert re.search(
            rf"Process 1 of 3 is gone: its process on this machine has ended\. [\d.]+ s before it was at step 3, "
            rf"\S+program\.py:{slept} in fail\.",
            said[name],
        ), said[name]
        assert re.search(r"Process [02] of 3 raises this at step 4, \S+program\.py:\d+ in main", said[name])
    assert said["kill-0"].startswith("PeerError: ")
    assert said["kill"].startswith("ProcessExitedException: process 1 terminated with signal SIGKILL")

    raised = line_of('raise KeyError("what')
    for name in ("raise-0", "raise-2"):
        assert re.search(
            rf"Process 1 of 3 ended by an exception at \S+:{raised} in fail, after step 3:\nKeyError: 'what was wrong'",
            said[name],
        )
    assert said["raise"].startswith("ProcessRaisedException: ") and "Process 1 terminated" in said["raise"]

    for name in ("differ-0", "differ-1", "differ-2"):
        assert "PeerError: The processes run different collectives from number 4 of the group on:" in said[name]
        for process, reduction in enumerate(["sum", "max", "sum"]):
            assert re.search(rf"process {process}, at step 4: all_reduce\('{reduction}'\) of float32\[4\]", said[name])
        assert f"program.py:{line_of('xm.all_reduce(xm.REDUCE_MAX')} in main" in said[name]

    for name in ("never-0", "never-2"):
        assert re.search(r"Process [02] waited 5 s in a collective for process 1, which did not come", said[name])
        assert "XLA_COLLECTIVE_TIMEOUT" in said[name]
        assert re.search(r"Process 1 is at step 3, \S+ in fail:(?s:.*)time\.sleep\(1000\)", said[name])

    for name in ("apart-0", "apart-2"):
        assert re.search(r"Process [02] of 3 waited 5 s for process 1 to start the xla device, which all", said[name])
        assert re.search(r"Process 1 is before its first program, \S+ in main:(?s:.*)time\.sleep\(1000\)", said[name])
        assert re.search(r"Process [02] is before its first program, \S+ in main:(?s:.*)torch_xla\.sync", said[name])


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_under_torchrun_too(tmp_path: Path, rank: int) -> None:
    script = PROGRAM.replace("if index == 1:\n        if how", f"if index == {rank}:\n        if how")
    (tmp_path / "program.py").write_text(script)
    said = tmp_path / "said"
    said.mkdir()
    result = subprocess.run(
        [*TORCHRUN, str(tmp_path / "program.py"), "kill", str(said)],
        env=settings(), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode != 0
    raised = {path.name: path.read_text() for path in said.iterdir()}
    assert sorted(raised) == [f"kill-{index}" for index in range(3) if index != rank], result.stderr
    assert all(f"Process {rank} of 3 is gone" in text for text in raised.values())
    assert "Signal 9 (SIGKILL)" in result.stderr and f"local_rank: {rank}" in result.stderr
    assert "SIGABRT" not in result.stderr


def processes_of(program: Path) -> list[str]:
    """The command lines that name a program."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if str(program) in command and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
            found.append(command)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_launcher_ends_them_when_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, str(program), "interrupt", str(tmp_path)], env=settings()) as parent:
        try:
            end = time.monotonic() + 120
            while len(processes_of(program)) < 4 and time.monotonic() < end:
                time.sleep(0.2)
            time.sleep(4)  # in the collective
            os.kill(parent.pid, number)
            assert parent.wait(120) != 0
            end = time.monotonic() + 120
            while processes_of(program) and time.monotonic() < end:
                time.sleep(0.2)
            assert not processes_of(program)
        finally:
            parent.kill()
