"""Kill a random process of four at random moments, as often as asked: the job ends as if none had been killed.

    python -m tests.support.random_kills 100

`torchrun` runs `examples/restarts.py`, starts all processes again after each kill, and they continue from the last
checkpoint. A moment is anywhere between the start of a process and the end of an undisturbed run: in the start, a
compile, a step, a collective or a checkpoint. Afterwards the final loss must be that of the undisturbed run to the last
digit, and no process, listening port or shared memory may be left.
"""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
COUNT = 4
LOSS = re.compile(r"final loss (\S+)")
# A mark in the environment of every process of a job.
MARK = "TORCH_XLA_RANDOM_KILLS"


def processes(mark: str) -> dict[int, int]:
    """Return every process of a job with its parent."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def start(folder: str, mark: str, restarts: int) -> "subprocess.Popen[str]":
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={COUNT}",
        f"--max-restarts={restarts}", "--monitor-interval=0.1", str(ROOT / "examples/restarts.py"), "--steps", "60",
        "--checkpoint", f"{folder}/{mark}.pt",
    ]  # fmt: skip
    settings = {**os.environ, MARK: mark, "CPU_NUM_DEVICES": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with open(f"{folder}/{mark}.log", "w") as log:
        return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder)


def workers(job: "subprocess.Popen[str]", mark: str, known: set[int]) -> list[int]:
    """Wait for all processes of the next attempt and return them; none if the job ends."""
    while job.poll() is None:
        found = [each for each, parent in processes(mark).items() if parent == job.pid and each not in known]
        if len(found) == COUNT:
            return found
        time.sleep(0.02)
    return []


def disturbed(folder: str, mark: str, kills: int, longest: float) -> tuple[int, str]:
    """Run a job and kill up to `kills` of its processes; return how many were killed, and the final loss."""
    job = start(folder, mark, kills)
    done, known = 0, set[int]()
    while done < kills and (now := workers(job, mark, known)):
        known.update(now)
        end = time.monotonic() + random.uniform(0, longest)
        while time.monotonic() < end and job.poll() is None:
            time.sleep(0.01)
        try:
            os.kill(random.choice(now), signal.SIGKILL)
        except ProcessLookupError:
            break  # it has finished
        done += 1
        print(f"kill {done} of job {mark}", flush=True)
    output, _ = job.communicate(timeout=600)
    loss = LOSS.search(output)
    assert job.returncode == 0 and loss, f"{output}\n{Path(folder, f'{mark}.log').read_text()}"
    return done, loss[1]


def wait_for_the_end(mark: str) -> None:
    """Wait until nothing of a job runs; the service ends a few seconds after the last process has left."""
    end = time.monotonic() + 60
    while left := processes(mark):
        assert time.monotonic() < end, f"processes are left: {left}"
        time.sleep(0.1)


def main(kills: int, seed: int) -> None:
    random.seed(seed)
    before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        _, expected = disturbed(folder, "undisturbed", 0, 0)
        wait_for_the_end("undisturbed")
        longest = time.monotonic() - begun
        print(f"undisturbed: {longest:.0f} s, final loss {expected}", flush=True)
        done = jobs = 0
        while done < kills:
            jobs += 1
            started = time.monotonic()
            more, loss = disturbed(folder, f"{seed}-{jobs}", min(5, kills - done), longest)
            if not more:  # the machine is faster by now, so that the job ended before the moment came
                longest = min(longest, time.monotonic() - started)
            assert loss == expected, f"seed {seed}, job {jobs}: {loss} and not {expected}"
            wait_for_the_end(f"{seed}-{jobs}")
            done += more
            print(f"{done} of {kills} kills, {jobs} jobs, {time.monotonic() - begun:.0f} s", flush=True)
    left = {name for name in set(os.listdir("/dev/shm")) - before if name.startswith(("torch_", "gloo"))}
    assert not left, f"shared memory is left: {left}"
    print(f"{done} kills in {jobs} jobs: each ended with the loss of an undisturbed run")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
