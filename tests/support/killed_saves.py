"""Kill processes at random bytes of a checkpoint's files: the last whole one loads each time.

    python -m tests.support.killed_saves 1000

Each process saves two checkpoints and is killed in the second; another one then loads the latest whole checkpoint. They
are forks of a process that has used no device.
"""

import os
import random
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _places

SIZE = 20_000


def in_fork(body: Callable[[], None]) -> int:
    """Run a function in a fork, and return its exit code, or the negative number of the signal that killed it."""
    if not (process := os.fork()):
        body()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def manager(folder: str) -> CheckpointManager:
    return CheckpointManager(folder, 1, chkpt_on_preemption=False)


def save(folder: str, step: int, kill_at: int | None) -> None:
    """Save a step, and be killed when so many bytes are written."""
    left = kill_at

    def write(self: _places._Summed, data: bytes) -> int:
        nonlocal left
        if left is not None and (left := left - len(data)) < 0:
            self._stream.write(data[: len(data) + left])
            self._stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return write_all(self, data)

    write_all = _places._Summed.write
    _places._Summed.write = write  # type: ignore[method-assign]
    manager(folder).save(step, {"w": torch.full((SIZE,), float(step)), "step": step})


def load(folder: str, expected: int) -> None:
    warnings.simplefilter("ignore")
    state = {"w": torch.zeros(SIZE), "step": -1}
    found = manager(folder).restore_latest(state)
    assert found == expected == state["step"], (found, expected, state["step"])
    assert bool((state["w"] == float(expected)).all())


def main(times: int, seed: int = 0) -> None:
    chance = random.Random(seed)
    killed = 0
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            assert in_fork(lambda: save(folder, 0, None)) == 0
            ended = in_fork(lambda: save(folder, 1, chance.randrange(4 * SIZE + 2500)))
            is_killed = ended == -signal.SIGKILL
            assert is_killed or ended == 0, ended
            killed += is_killed
            assert in_fork(partial(load, folder, 0 if is_killed else 1)) == 0
            damage(folder, chance)
            assert in_fork(lambda: load(folder, 0)) == 0
    print(f"{killed} of {times} were killed, and every time the last whole checkpoint loaded")
    assert killed > times / 2


def damage(folder: str, chance: random.Random) -> None:
    """Save another step, and change a byte of it."""
    assert in_fork(lambda: save(folder, 2, None)) == 0
    file = chance.choice([each for each in Path(folder, "2").iterdir() if not each.name.startswith(".checksums")])
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)
    if Path(folder, "1").exists():
        os.rename(Path(folder, "1"), Path(folder, "1.aside"))


if __name__ == "__main__":
    main(int(sys.argv[1]))
