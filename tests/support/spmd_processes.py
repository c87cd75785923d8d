"""One program over four devices, in one process or in two of two devices each: its losses, and a checkpoint.

The folder is the argument; see tests/api/distributed/test_spmd_processes.py.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.experimental import distributed_checkpoint as checkpoints


def main(folder: Path) -> None:
    xr.use_spmd()
    count, process = xr.process_count(), xr.process_index()
    assert xr.global_runtime_device_count() == 4 and xr.world_size() == 1
    assert xr.addressable_runtime_device_count() == 4 // count and xm.is_master_ordinal() == (process == 0)
    mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.GELU(), nn.Linear(32, 4)).to("xla")
    xs.mark_sharding(model[0].weight, mesh, ("model", "data"))  # type: ignore[arg-type]
    xs.mark_sharding(model[3].weight, mesh, (None, "model"))  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    whole = [torch.sin(torch.arange(128.0) * (step + 1)).view(8, 16) for step in range(4)]
    mine = [batch[8 // count * process :][: 8 // count] for batch in whole]
    spec = xs.ShardingSpec(mesh, ("data", None), minibatch=True)
    losses = []
    for x, expected in zip(pl.MpDeviceLoader(mine, torch_xla.device(), input_sharding=spec), whole, strict=True):
        assert x.shape == (8, 16) and x.cpu().equal(expected)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    shards = xs.wrap_as_sharded_tensor(model[0].weight).local_shards  # type: ignore[arg-type]
    assert [shard.data.shape for shard in shards] == [(16, 8)] * (4 // count)
    state = {"model": model.state_dict()}
    if count > 1:
        dist.init_process_group("gloo")
    path = folder / f"checkpoint-{count}"
    dcp.save(state, checkpoint_id=path, planner=checkpoints.SPMDSavePlanner(), no_dist=count == 1)
    sums = [parameter.double().sum().item() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    dcp.load(state, checkpoint_id=path, planner=checkpoints.SPMDLoadPlanner(), no_dist=count == 1)
    assert [parameter.double().sum().item() for parameter in model.parameters()] == sums
    if process == 0:
        torch.save((losses, sums), folder / f"{count}.pt")
    if count > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    assert os.environ["XLA_FLAGS"]
