"""Measures what each process holds, and what a step takes besides, when a model is divided among processes.

    python -m benchmarks.sharded_memory [--processes 4] [--width 256] [--layers 6]

Held are parameters and optimizer states between two steps, by the sum of the buffers on the device; gradients are as
large as the parameters, and are counted with `zero_grad(set_to_none=False)`. Besides is what XLA says that the program
of the step needs beyond its arguments and results. Ratios are to `DistributedDataParallel`, which holds everything.
"""

import argparse
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401  (registers the backend "xla")
from torch_xla._engine.metrics import events
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

MEBIBYTE = 2**20


class Layer(nn.Module):
    """A residual layer of two products, the inner one four times as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(nn.functional.gelu(self.inner(self.norm(x))))


def network(width: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(width) for _ in range(layers)))


Made = tuple[nn.Module, torch.optim.Optimizer]


def replicated(model: nn.Module) -> Made:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # times are kept for CPU and CUDA only
        wrapped = DistributedDataParallel(model.to("xla"), gradient_as_bucket_view=True)
    return wrapped, torch.optim.AdamW(wrapped.parameters())


def zero_1(model: nn.Module) -> Made:
    model = model.to("xla")
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)


def divided(model: nn.Module, **options: Any) -> Made:
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})
    wrapped = XlaFullyShardedDataParallel(model, auto_wrap_policy=policy, **options)
    return wrapped, torch.optim.AdamW(wrapped.parameters())


def by_pytorch(model: nn.Module) -> Made:
    model = model.to("xla")
    mesh = init_device_mesh("xla", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters())


CONTESTANTS: dict[str, Callable[[nn.Module], Made]] = {
    "DistributedDataParallel": replicated,
    "XlaFullyShardedDataParallel": divided,
    "ZeroRedundancyOptimizer": zero_1,
    "the same, reshard_after_forward=False": partial(divided, reshard_after_forward=False),
    "fully_shard (PyTorch)": by_pytorch,
}


def measure(make: Callable[[nn.Module], Made], width: int, layers: int) -> tuple[float, float]:
    """MiB held between two steps, and MiB that the program of a step takes besides."""
    before = xm.get_memory_info()["bytes_used"]
    model, optimizer = make(network(width, layers))
    x = torch.randn(8, width, device="xla")
    sizes: list[Any] = []

    def listen(event: Any) -> None:
        if isinstance(event, events.Compilation) and event.sizes is not None:
            sizes.append(event.sizes)

    for _ in range(3):
        events.listen(listen)
        loss = model(x).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        torch_xla.sync(wait=True)
        events.unlisten(listen)
    xm.wait_device_ops()
    held = xm.get_memory_info()["bytes_used"] - before
    return held / MEBIBYTE, sizes[-1].intermediate / MEBIBYTE


def rows(width: int, layers: int, most: int) -> Iterator[tuple[str, float, float]]:
    for name, make in list(CONTESTANTS.items())[:most]:
        yield name, *measure(make, width, layers)


def main(index: int, width: int, layers: int, most: int) -> None:
    """One of the processes; the first prints."""
    dist.init_process_group("xla", init_method="xla://")
    elements = sum(parameter.numel() for parameter in network(width, layers).parameters())
    xm.master_print(f"{dist.get_world_size()} processes, {4 * elements / MEBIBYTE:.1f} MiB of parameters\n")
    xm.master_print("| | held, MiB | of replicated | besides in a step, MiB | of the parameters |")
    xm.master_print("| --- | ---: | ---: | ---: | ---: |")
    first = 0.0
    for name, held, besides in rows(width, layers, most):
        first = first or held
        share = besides * MEBIBYTE / (4 * elements)
        xm.master_print(f"| {name} | {held:.1f} | {held / first:.2f} | {besides:.1f} | {share:.2f} |", flush=True)
    dist.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=int, default=len(CONTESTANTS), help="only the first so many")
    options = parser.parse_args()
    os.environ.setdefault("CPU_NUM_DEVICES", str(options.processes))
    torch_xla.launch(main, args=(options.width, options.layers, options.rows))
