"""A training that keeps its state in memory, for `torchrun`: tests/api/distributed/test_memory_checkpoints.py.

    torchrun ... -m tests.support.kept_in_memory FOLDER WHAT

`WHAT` says what happens in step 7 of the first attempt: process 1 is killed (`kill`), and what its host keeps is
lost with it (`host`) or changes in a byte (`damage`); or the process alone that removes the memory (`keeper`). Each
process writes what it restored, and whether it ended as a run without a loss.
"""

import itertools
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torch_xla
import torch_xla.distributed.xla_backend
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _keeper, _memory, prime_optimizer

STEPS, LOSE = 10, 7


def lose(what: str, kept: _memory.Memory) -> None:
    """The accident, in the process that is lost."""
    if what == "keeper":
        holder = _keeper.holder_of(kept.folder.parent)
        assert holder is not None
        os.kill(holder, signal.SIGKILL)
        while _keeper.holder_of(kept.folder.parent) is not None:
            time.sleep(0.01)
        return
    for path in sorted(kept.folder.glob(f"{kept.rank}-*.data")) if what != "kill" else ():
        if what == "host":
            path.with_suffix(".head").unlink()
            path.unlink()
        else:
            with path.open("r+b") as file:
                file.seek(4)
                byte = file.read(1)
                file.seek(4)
                file.write(bytes([byte[0] ^ 1]))
    os.kill(os.getpid(), signal.SIGKILL)


def made(rank: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(rank)  # each process has a state of its own
    model = torch.nn.Linear(5, 3).to("xla", torch.bfloat16)
    return model, prime_optimizer(torch.optim.AdamW(model.parameters(), lr=0.1))


def step_of(step: int, rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + rank)).to("xla", torch.bfloat16)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    total = torch.ones(1, device="xla")
    dist.all_reduce(total)
    torch_xla.sync()


def values(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    found = itertools.chain(model.state_dict().values(), *(each.values() for each in optimizer.state.values()))
    return [each.cpu() for each in found]


def main(folder: Path, what: str) -> None:
    """Train from the newest state there is; then from the beginning, which must give the same."""
    dist.init_process_group("xla", init_method="xla://")
    rank, lost = dist.get_rank(), folder / "lost"
    is_first = not lost.exists()  # each agent has a count of its own
    model, optimizer = made(rank)
    manager = CheckpointManager(str(folder / "steps"), 4, memory_every=2, chkpt_on_preemption=False)
    own = f"of {rank}"  # a checkpoint of the path has one value by a name
    state: dict[str, Any] = {own: [model.state_dict(), optimizer.state_dict()], "next": 0}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = manager.restore_latest(state)
        model.load_state_dict(state[own][0])
        optimizer.load_state_dict(state[own][1])
        kept = manager._memory
        assert kept is not None
        for step in range(state["next"], STEPS):
            if step == LOSE and is_first:
                manager.join()
                dist.barrier()
                if rank == 1:
                    lost.touch()
                    lose(what, kept)
            step_of(step, rank, model, optimizer)
            manager.save_async(step, {own: [model.state_dict(), optimizer.state_dict()], "next": step + 1})
        manager.join()
    undisturbed = made(rank)
    for step in range(STEPS):
        step_of(step, rank, *undisturbed)
    pairs = zip(values(model, optimizer), values(*undisturbed), strict=True)
    report = {
        "step": found, "from": manager.restored_from, "next": state["next"], "folder": str(kept.folder.parent),
        "is_equal": all(torch.equal(one, other) for one, other in pairs),
        "said": [str(each.message) for each in said if "CheckpointManager" in str(each.message)],
    }  # fmt: skip
    (folder / f"{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
