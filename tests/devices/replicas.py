"""Collectives of processes with a device each, and what is trained with them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

import torch_xla.core.xla_model as xm
from tests.devices.case import Case, has, training
from torch_xla.debug import StepPlan
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.int64, torch.float64)
ROWS, WIDTH = 256, 512


def replicas() -> Iterator[Case]:
    """Each collective between 4 and 16 processes, with no more bytes than JAX's; data parallel, FSDP, ZeRO."""
    for devices in (4, 16):
        for dtype in DTYPES if devices == 4 else DTYPES[:2]:
            yield from _exchanges(dtype, devices)
        yield Case(f"data parallel x {devices}", _averaged(), has("all-reduce"), 2, devices, 0)
        gathers = has("all-gather")
        yield Case(f"FSDP x {devices}", _fully_sharded(), gathers, 1, devices, devices - 1)
        yield Case(f"ZeRO x {devices}", _zero_redundancy(), gathers, 1, devices, 1)


def _exchanges(dtype: torch.dtype, devices: int) -> Iterator[Case]:
    x = torch.zeros(ROWS, WIDTH, device="xla").to(dtype)
    halves = [[*range(devices // 2)], [*range(devices // 2, devices)]]
    uneven = [[*range(1, devices)], [0]]
    ring = [[each, (each + 1) % devices] for each in range(devices)]
    # What JAX's collectives take, by the size of `x`. Of reductions that XLA lacks, all arrays are gathered.
    one, all_of_them = x.nbytes, devices * x.nbytes
    is_long = dtype.itemsize == 8  # computed in parts of 32 bits on a TPU, where a sum of integers has a carry
    added = all_of_them if dtype is torch.float64 else 1.5 * one if is_long else one
    extreme = all_of_them if dtype is torch.float64 else one
    found: dict[str, tuple[Callable[[], Any], float]] = {
        "all_reduce sum": (partial(xm.all_reduce, "sum", x), added),
        "all_reduce mul": (partial(xm.all_reduce, "mul", x), all_of_them),
        "all_reduce min": (partial(xm.all_reduce, "min", x), extreme),
        "all_reduce max": (partial(xm.all_reduce, "max", x), extreme),
        "all_reduce sum in halves": (partial(xm.all_reduce, "sum", x, groups=halves), added),
        "all_gather": (partial(xm.all_gather, x), all_of_them),
        "all_gather of columns": (partial(xm.all_gather, x, 1), all_of_them),
        "all_gather in halves": (partial(xm.all_gather, x, groups=halves), all_of_them / 2),
        "all_reduce max, uneven": (partial(xm.all_reduce, "max", x, groups=uneven), all_of_them),
        "reduce_scatter": (partial(xm.reduce_scatter, "sum", x, 1.0, 0, devices), added),
        "all_to_all": (partial(xm.all_to_all, x, 0, 1, devices), one),
        "collective_permute": (partial(xm.collective_permute, x, ring), one),
        "collective_broadcast": (partial(xm.collective_broadcast, [x], 1), one),
    }
    if not dtype.is_floating_point:
        found["all_reduce and"] = partial(xm.all_reduce, "and", x), all_of_them
        found["all_reduce or"] = partial(xm.all_reduce, "or", x), all_of_them
    for name, (exchange, most) in found.items():
        yield Case(f"{name} {dtype} x {devices}", exchange, partial(_sends, most), devices=devices, rank=1)


def _sends(most: float, plan: StepPlan) -> None:
    (program,) = plan.programs
    sent = sum(each.bytes for each in program.work.collectives)
    assert sent, "nothing is sent"
    assert sent <= most, f"{sent} bytes are sent, by JAX {most:.0f}"


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).to("xla")


def _averaged() -> Callable[[], None]:
    network, x = _network(), torch.zeros(ROWS, WIDTH, device="xla")
    optimizer = torch.optim.AdamW(network.parameters())

    def step() -> None:
        network(x).square().mean().backward()
        xm.optimizer_step(optimizer)
        optimizer.zero_grad()

    return step


def _fully_sharded() -> Callable[[], None]:
    def step() -> None:
        network = XlaFullyShardedDataParallel(_network())
        training(network, lambda: torch.zeros(ROWS, WIDTH, device="xla"))()

    return step


def _zero_redundancy() -> Callable[[], None]:
    def step() -> None:
        network = _network()
        optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.AdamW)
        network(torch.zeros(ROWS, WIDTH, device="xla")).square().mean().backward()
        optimizer.step()

    return step
