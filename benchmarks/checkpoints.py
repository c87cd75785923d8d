"""Measure what a checkpoint costs: the steps beside a thread that saves, and the time until a state is restored.

    python -m benchmarks.checkpoints [--every 50] [--turns 5] [--width 768] [--folder /dev/shm]

A turn is `--every` training steps of an MLP with AdamW, of which the first saves by `CheckpointManager.save_async` in
every second turn. The cost is the difference of the fastest turns of each kind, as a share of the fastest without; so
is the part in which the training thread copies the state. The rate of restoring is that of the fastest `restore`,
compared with the fastest copy of as many bytes in memory. The default folder is in memory: what is saved there is there
for a process that starts again on this machine, and is lost with the machine. The same is measured of states that are
kept in memory (`memory_every`).
"""

import argparse
import tempfile
import time
import warnings

import torch
from torch import nn

import torch_xla
from torch_xla.experimental.distributed_checkpoint import CheckpointManager


class Training:
    """An MLP, its optimizer, and what a checkpoint of them is."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(2)]
        self.model = nn.Sequential(*layers).to("xla")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(256, width).to("xla")

    def step(self) -> None:
        loss = (self.model(self.x) - self.x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        torch_xla.sync()

    def state(self) -> dict[str, object]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def bytes(self) -> int:
        return 3 * sum(each.numel() * each.element_size() for each in self.model.parameters())


def turn(training: Training, manager: CheckpointManager | None, number: int, every: int) -> tuple[float, float]:
    """Return the seconds of a turn, and those in `save_async`."""
    start, saving = time.perf_counter(), 0.0
    for index in range(every):
        training.step()
        if manager is not None and index == 0:
            began = time.perf_counter()
            manager.save_async(number, training.state())
            saving = time.perf_counter() - began
    torch_xla.sync(wait=True)
    return time.perf_counter() - start, saving


def least_of_restores(manager: CheckpointManager, training: Training, turns: int) -> float:
    """Return the seconds of the fastest restore of the last step, up to the values on the device."""
    found = []
    for _ in range(turns):
        start = time.perf_counter()
        manager.restore_latest(training.state())
        torch_xla.sync(wait=True)
        found.append(time.perf_counter() - start)
    return min(found)


def least_of_copies(size: int, turns: int) -> float:
    """Return the seconds of the fastest copy of `size` bytes in memory."""
    source, target, found = torch.ones(size // 4), torch.empty(size // 4), []
    for _ in range(turns + 1):
        start = time.perf_counter()
        target.copy_(source)
        found.append(time.perf_counter() - start)
    return min(found)


def measure(manager: CheckpointManager, training: Training, turns: int, every: int, title: str) -> None:
    """Print the cost of saving and the rate of restoring."""
    turn(training, manager, 0, 5)
    without, beside = [], []
    for number in range(1, turns + 1):
        manager.join()  # what the last turn saves is counted in it, if its steps end later
        without.append(turn(training, None, number, every)[0])
        beside.append(turn(training, manager, number, every))
    manager.join()
    least, saved, copied = min(without), min(seconds for seconds, _ in beside), min(each for _, each in beside)
    print(f"{title}: a step takes {least / every * 1e3:.2f} ms; {turns} turns of {every} steps")
    print(f"  a save costs {saved / least - 1:.1%} of the steps; {copied / least:.1%} is the copy of the state")
    size = training.bytes()
    restored, memory = least_of_restores(manager, training, turns), least_of_copies(size, turns)
    print(f"  restore: {size / restored / 1e9:.2f} GB/s; {memory / restored:.2f} of the rate of a copy in memory")


def main(every: int, turns: int, width: int, folder: str) -> None:
    """Measure a place that is a folder, and one that is memory."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    training = Training(width)
    print(f"state: {training.bytes() / 1e6:.0f} MB")
    with tempfile.TemporaryDirectory(dir=folder) as path:
        manager = CheckpointManager(path, 1, max_to_keep=2, chkpt_on_preemption=False)
        measure(manager, training, turns, every, "in a folder")
        manager = CheckpointManager(path, 1_000_000, memory_every=1, chkpt_on_preemption=False)
        manager.save(turns, training.state())
        measure(manager, training, turns, every, "kept in memory")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--folder", default="/dev/shm")
    given = parser.parse_args()
    main(given.every, given.turns, given.width, given.folder)
