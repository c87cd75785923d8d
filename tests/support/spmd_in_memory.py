"""A tensor over four devices of two processes is kept in memory: see test_divided_memory_checkpoints.py.

The folder is the argument. Each process writes from which place the state came back, and whether it was equal; a single
process of four devices loads the same checkpoint of the path.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _keeper

HOST = torch.arange(40.0).view(10, 4)


def made(host: torch.Tensor) -> dict[str, Any]:
    mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
    state: dict[str, Any] = {name: host.clone().to("xla") for name in ("rows", "both", "uneven", "all")}
    for name, spec in (("rows", ("data", None)), ("both", ("model", "data")), ("uneven", (("data", "model"), None))):
        xs.mark_sharding(state[name], mesh, spec)
    return state


def is_equal(state: dict[str, Any]) -> bool:
    return all(each.cpu().equal(HOST) for each in state.values())


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    xr.use_spmd()
    count, process = xr.process_count(), xr.process_index()
    found = []
    if count == 1:
        manager, state = CheckpointManager(str(folder / "steps"), 1, chkpt_on_preemption=False), made(0 * HOST)
        found.append((manager.restore_latest(state), manager.restored_from, is_equal(state)))
    else:
        dist.init_process_group("gloo")
        _keeper.ROOT = folder / f"host{process}"
        _keeper.ROOT.mkdir()
        manager = CheckpointManager(str(folder / "steps"), 1, memory_every=1, chkpt_on_preemption=False)
        manager.save_async(1, made(HOST))
        manager.join()
        assert manager._memory is not None
        for lost in ((), (0,), (0, 1)):
            for head in manager._memory.folder.glob("*.head") if process in lost else ():
                head.unlink()
            dist.barrier()
            state = made(0 * HOST)
            found.append((manager.restore_latest(state), manager.restored_from, is_equal(state)))
        dist.destroy_process_group()
    torch.save(found, folder / f"{count}-{process}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
