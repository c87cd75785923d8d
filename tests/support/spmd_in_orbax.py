"""Tensors over four devices of two processes are written in Orbax's format: see test_orbax_of_processes.py.

The folder is the argument. Two processes write and read, then a single one of four devices reads.
"""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

import torch_xla.runtime as xr
from tests.support.spmd_in_memory import HOST, is_equal, made
from torch_xla.experimental.distributed_checkpoint import CheckpointManager


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    xr.use_spmd()
    count, process = xr.process_count(), xr.process_index()
    if count > 1:
        dist.init_process_group("gloo")
    manager = CheckpointManager(str(folder / "steps"), 1, chkpt_on_preemption=False, format="orbax")
    if count > 1:
        manager.save_async(3, made(HOST))
        manager.join()
    state = made(0 * HOST)
    found = [manager.all_steps(), manager.restore_latest(state), is_equal(state)]
    torch.save(found, folder / f"{count}-{process}.pt")
    if count > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
