"""Trains one network in several processes, each with a device, by `DistributedDataParallel`.

    CPU_NUM_DEVICES=2 python examples/processes.py
    torchrun --nproc-per-node 2 examples/processes.py

Every process takes its part of each batch; the losses are held against those of one process that takes the whole.
"""

import argparse
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.xla_backend  # noqa: F401  (registers the backend "xla")
import torch_xla.runtime as xr


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))


def batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of shape (size, 64) and their classes, the same in every process."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 64, generator=generator)
    return x, x[:, :10].argmax(1)


def train(model: nn.Module, steps: int, size: int, rank: int, count: int, device: str) -> list[torch.Tensor]:
    """Trains on part `rank` of `count` of each batch and returns the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(steps):
        x, y = (each.chunk(count)[rank].to(device) for each in batch(step, size))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.detach())
    return losses


def main(index: int, steps: int, size: int) -> None:
    """One of the processes."""
    dist.init_process_group("xla", init_method="xla://")
    rank, count = dist.get_rank(), dist.get_world_size()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Tt]ime stats")  # DDP keeps times for CPU and CUDA only
        model = DistributedDataParallel(network().to("xla"), gradient_as_bucket_view=True)
        losses = torch.stack(train(model, steps, size, rank, count, "xla"))
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    mine = losses.tolist()
    executions = (met.counter_value("ExecuteComputation") or 0) / steps
    if rank == 0:
        alone = [loss.item() for loss in train(network(), steps, size, 0, 1, "cpu")]
        difference = max(abs(a - b) for a, b in zip(mine[:20], alone[:20], strict=True))
        xm.master_print(f"{count} processes, {xr.device_type()}: loss {mine[0]:.4f} → {mine[-1]:.4f}")
        xm.master_print(f"largest difference to one process in the first 20 steps {difference:.1e}")
        xm.master_print(f"executions a step {executions:.2f}")
        assert difference < 1e-4
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="20 steps")
    options = parser.parse_args()
    torch_xla.launch(main, args=(20 if options.fast else 200, 64))
