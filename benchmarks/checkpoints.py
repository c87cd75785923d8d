"""Measure what a checkpoint costs: the steps beside a thread that saves, and the time until a state is restored.

    python -m benchmarks.checkpoints [--every 50] [--turns 5] [--width 768] [--folder /dev/shm]

A turn is `--every` training steps of an MLP with AdamW, of which the first saves by `CheckpointManager.save_async` in
every second turn. The cost is the difference of the fastest turns of each kind, as a share of the fastest without; so
is the part in which the training thread copies the state. Here the processor is the device: the least processor time of
the turns shows the cost of a save where other programs run. The rate of restoring is that of the fastest `restore`,
compared with the fastest copy of as many bytes in memory. The default folder is in memory: what is saved there is there
for a process that starts again on this machine, and is lost with the machine. The same is measured of states that are
kept in memory (`memory_every`).

A process that has lost its state gets it from the memory of another. Both restore at the same time, so the rate is also
compared with that of two copies at the same time. On one machine it maps the file of the other one: what it then does
is a fault for each small page, and a checksum. From another machine the state comes through a socket, which carries
less than a copy does, also between two processes of one machine, as here: the rate is compared with that of a
broadcast, too. The pages that are written must be made, and are added up as they come.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import torch_xla
import torch_xla.distributed.xla_backend
import torch_xla.distributed.xla_multiprocessing as xmp
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _hosts, _keeper

PARTS = 32  # tensors of the state that comes from a peer


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


class Turn(NamedTuple):
    """Seconds of a turn: all of it, in `save_async`, and on the processors."""

    whole: float
    saving: float
    processors: float


def turn(training: Training, manager: CheckpointManager | None, number: int, every: int) -> Turn:
    """Return the seconds of a turn."""
    start, processors, saving = time.perf_counter(), time.process_time(), 0.0
    for index in range(every):
        training.step()
        if manager is not None and index == 0:
            began = time.perf_counter()
            manager.save_async(number, training.state())
            saving = time.perf_counter() - began
    torch_xla.sync(wait=True)
    return Turn(time.perf_counter() - start, saving, time.process_time() - processors)


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
        without.append(turn(training, None, number, every))
        beside.append(turn(training, manager, number, every))
    manager.join()
    plain, saved = (Turn(*map(min, zip(*turns_, strict=True))) for turns_ in (without, beside))
    print(f"{title}: a step takes {plain.whole / every * 1e3:.2f} ms; {turns} turns of {every} steps")
    print(f"  a save costs {saved.whole / plain.whole - 1:.1%} of the steps, {saved.saving / plain.whole:.1%} its copy")
    print(f"  a save costs {saved.processors / plain.processors - 1:.1%} of the steps' processor time")
    size = training.bytes()
    restored, memory = least_of_restores(manager, training, turns), least_of_copies(size, turns)
    print(f"  restore: {size / restored / 1e9:.2f} GB/s; {memory / restored:.2f} of the rate of a copy in memory")


def restore_from_peer(index: int, path: str, size: int, turns: int, is_one_machine: bool) -> None:
    """Lose the memory of process 0 in each turn, so that its state comes from process 1; process 0 prints the rates."""
    dist.init_process_group("xla", init_method="xla://")
    _keeper.ROOT = Path(path, f"host{index}")
    _keeper.ROOT.mkdir()
    if not is_one_machine:
        _hosts.MACHINE = Path(path, f"machine{index}")
        _hosts.MACHINE.write_text(str(index))
    manager = CheckpointManager(f"{path}/steps", 1_000_000, memory_every=1, chkpt_on_preemption=False)
    restored, carried, copied, (host, other) = [], [], [], torch.zeros(2, size, dtype=torch.uint8)
    for step in range(turns + 1):
        manager.save(step, parts(size, step))
        for head in manager._memory.folder.glob("0-*.head") if index == 0 else ():  # type: ignore[union-attr]
            head.unlink()
        state = parts(size, 0)  # new, as after a start: else the memory of the last turn is given back
        restored.append(seconds_together(lambda: manager.restore_latest(state)))  # noqa: B023
        assert manager.restored_from == ("memory" if index else "peer")
        assert all(each.eq(step).all() for each in state.values())
        carried.append(seconds_together(lambda: dist.broadcast(host, 1)))
        copied.append(seconds_together(lambda: other.copy_(host)))
    alone = least_of_copies(size, turns) if index == 0 else 0.0
    dist.barrier()
    if index == 0:
        where = "on this machine" if is_one_machine else "through a socket"
        rate = size / min(restored) / 1e9
        print(f"from a peer's memory {where}: {2 * turns} restores of {size / 1e6:.0f} MB in two processes")
        print(f"  restore: {rate:.2f} GB/s; {alone / min(restored):.2f} of the rate of a copy in memory", end="")
        print(f", {min(copied) / min(restored):.2f} of two copies at once")
        print(f"  a socket: {size / min(carried) / 1e9:.2f} GB/s; {alone / min(carried):.2f} of the rate of a copy")
    dist.destroy_process_group()


def parts(size: int, value: float) -> dict[str, torch.Tensor]:
    """Return a state of `PARTS` tensors."""
    found = {str(each): torch.full((size // 4 // PARTS,), float(value)).to("xla") for each in range(PARTS)}
    torch_xla.sync(wait=True)
    return found


def seconds_together(call: Callable[[], object]) -> float:
    """Return the seconds of a call that the processes begin at the same time."""
    dist.barrier()
    start = time.perf_counter()
    call()
    torch_xla.sync(wait=True)
    return time.perf_counter() - start


def main(every: int, turns: int, width: int, folder: str) -> None:
    """Measure a place that is memory of another process, a folder, and own memory."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    size = 3 * 4 * 4 * width * width * 4  # about that of the training
    for is_one_machine in (True, False):
        with tempfile.TemporaryDirectory(dir=folder) as path:
            xmp.spawn(restore_from_peer, (path, size, 4 * turns, is_one_machine), nprocs=2, start_method="fork")
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
