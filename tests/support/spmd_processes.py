"""One program over four devices, in one process or in two of two devices each: its losses, and a checkpoint.

The folder is the argument; see tests/api/distributed/test_spmd_processes.py.
"""

import gc
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla._engine.compile.disk import cache_folder, disk_cache
from torch_xla._engine.metrics import counters
from torch_xla.experimental import distributed_checkpoint as checkpoints


def main(folder: Path) -> None:
    gc.freeze()  # to collect garbage takes less time so
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
        activation = model(x)
        loss = activation.pow(2).mean()
        loss.backward()
        optimizer.step()
        _leave_garbage(activation, mesh, has_collector=process == 0)
        del activation
        torch_xla.sync()
        losses.append(loss.item())
    shards = xs.wrap_as_sharded_tensor(model[0].weight).local_shards  # type: ignore[arg-type]
    assert [shard.data.shape for shard in shards] == [(16, 8)] * (4 // count)
    _distributed(count, process)
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
    compiled = counters.value_of("StableHloCompile") or 0, counters.value_of("PersistentCacheHit") or 0
    torch.save((losses, sums, compiled), folder / f"{count}-{process}.pt")
    if count > 1:
        dist.destroy_process_group()


def _leave_garbage(activation: torch.Tensor, mesh: xs.Mesh, has_collector: bool) -> None:
    """Leaves tensors of the step in cycles, one of them marked and written; one process collects them, others not."""
    marked = torch.zeros(8, 4, device="xla")
    xs.mark_sharding(marked, mesh, ("data", None))
    marked.add_(activation.detach())
    cycle: list[object] = [activation.detach()[:4], marked]
    cycle.append(cycle)
    del cycle, marked
    if has_collector:
        gc.collect()
    else:
        gc.disable()


def _distributed(count: int, process: int) -> None:
    """Check distributed tensors that are made from each process's part."""
    grid = init_device_mesh("xla", (2, 2), mesh_dim_names=("data", "model"))
    host = torch.arange(32.0).view(8, 4)
    for mesh, placements, own in (
        (grid, (Shard(0), Shard(1)), host.chunk(count)[process]),
        (grid["data"], (Shard(1),), host.chunk(count, 1)[process]),
        (grid["model"], (Shard(0),), host),
    ):
        t = DTensor.from_local(own, mesh, placements)
        assert t.shape == (8, 4) and t.placements == placements and t.full_tensor().cpu().equal(host)
        if count > 1:
            assert t.to_local().device.type == "cpu" and t.to_local().equal(own)
        moved = t.redistribute(placements=[Replicate()] * mesh.ndim)
        assert moved.cpu().equal(host) and (t @ host.t().to("xla")).sum().item() == (host @ host.t()).sum().item()
    for reduction, times in (("sum", sum(range(count + 1))), ("avg", (count + 1) / 2), ("max", count), ("min", 1)):
        for rest in (Replicate(), Partial(reduction)):
            t = DTensor.from_local(host * (process + 1), grid, (Partial(reduction), rest))
            assert t.full_tensor().cpu().equal(host * times), (reduction, rest)
    if count > 1:
        _gradients(grid, host, process)


def _gradients(grid: DeviceMesh, host: torch.Tensor, process: int) -> None:
    """They come back to what each of two processes has."""
    own = host.chunk(2)[process].clone().requires_grad_()
    (DTensor.from_local(own, grid, (Shard(0), Shard(1))) ** 2).sum().backward()
    assert own.grad is not None and own.grad.equal(2 * own.detach())
    other = host.clone().requires_grad_()
    t = DTensor.from_local(other * (process + 1), grid, (Partial(), Replicate()))
    (t.redistribute(placements=(Shard(0), Replicate())).to_local() * 2).sum().backward()
    assert other.grad is not None and other.grad.equal(torch.full_like(host, 2.0 * (process + 1)))


if __name__ == "__main__":
    disk_cache.WORTH_KEEPING_SECONDS = 0.0
    cache_folder.choose(f"{sys.argv[1]}/cache-{os.environ.get('RANK', 'alone')}")
    main(Path(sys.argv[1]))
    assert os.environ["XLA_FLAGS"]
