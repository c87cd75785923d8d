"""Tensors on `xla` in groups of Gloo: every collective gives what it gives on the CPU, in processes without a mesh."""

import datetime
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_xla._engine.distributed import staged_collectives


def _collectives(device: str) -> list[Any]:
    """Return the results of all collectives on tensors of a device."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.arange(4.0, device=device) + rank
    got: list[Any] = []

    def add(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
        work = call(*arguments, **keywords)
        if hasattr(work, "wait"):
            work.wait()
        got.append([each.tolist() if isinstance(each, torch.Tensor) else each for each in _flat(arguments)])

    new = lambda length=4: torch.zeros(length, device=device)  # noqa: E731
    add(dist.all_reduce, x.clone())
    add(dist.all_reduce, x.clone(), dist.ReduceOp.MAX, async_op=True)
    add(dist.all_gather, [new() for _ in range(size)], x)
    add(dist.all_gather_into_tensor, new(4 * size), x, async_op=True)
    add(dist.broadcast, x.clone(), 1)
    reduced = x.clone()
    dist.reduce(reduced, 1)
    got.append(reduced.tolist() if rank == 1 else None)
    add(dist.scatter, new(2), [torch.full((2,), 1.0 + i, device=device) for i in range(size)] if rank == 0 else None)
    add(dist.gather, x, [new() for _ in range(size)] if rank == 0 else None)
    add(dist.all_to_all_single, new(), x)
    add(dist.reduce_scatter_tensor, new(2), x)
    sent, got_one = dist.isend(x, 1 - rank), new()
    dist.irecv(got_one, 1 - rank).wait()
    sent.wait()
    got.append(got_one.tolist())
    if rank == 0:
        dist.send(x, 1)
    else:
        assert dist.recv(got_one) == 0  # from any process
    got.append(got_one.tolist())
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, got_one, 1 - rank)])
    for work in works:
        work.wait()
    dist.barrier()
    return [*got, got_one.tolist()]


def _flat(arguments: Any) -> list[Any]:
    return [one for each in arguments for one in (each if isinstance(each, list) else [each])]


def _gradients(device: str, finds: bool) -> list[Any]:
    """Return what `DistributedDataParallel` leaves in the gradients of a layer."""
    layer = nn.Linear(2, 2).to(device)
    with torch.no_grad():
        for each in layer.parameters():
            each.fill_(1.0 + dist.get_rank())
    net = DistributedDataParallel(layer, find_unused_parameters=finds)
    net(torch.full((3, 2), 1.0 + dist.get_rank(), device=device)).sum().backward()
    return [[each.tolist(), each.grad.tolist()] for each in layer.parameters()]  # type: ignore[union-attr]


def _beside_cpu() -> None:
    for place, (found, expected) in enumerate(zip(_collectives("xla"), _collectives("cpu"), strict=True)):
        assert found == expected, (place, found, expected)
    view = torch.zeros(2, 4, device="xla")
    dist.all_reduce(view[:, 1].add_(1 + dist.get_rank()))
    assert view[:, 1].tolist() == [3.0, 3.0] and view.sum() == 6  # on the CPU, Gloo reduces other elements
    for finds in (False, True):
        assert _gradients("xla", finds) == _gradients("cpu", finds)


def _lose_a_peer() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    kept = torch.ones(2, device="xla")
    work = dist.all_reduce(kept, async_op=True)
    with pytest.raises(RuntimeError):
        work.wait()
    assert kept.tolist() == [1.0, 1.0]


def _in(process: int, place: Path, body: Callable[[], None]) -> None:
    store = dist.FileStore(str(place), 2)
    dist.init_process_group("gloo", store=store, rank=process, world_size=2, timeout=datetime.timedelta(seconds=60))
    body()
    os._exit(0)


def _run(place: Path, body: Callable[[], None]) -> list[int | None]:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_in, args=(process, place / "store", body)) for process in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]


@pytest.mark.slow
def test_two_processes_get_what_they_get_on_the_cpu(tmp_path: Path) -> None:
    assert _run(tmp_path, _beside_cpu) == [0, 0]


@pytest.mark.slow
def test_a_lost_peer_is_an_error_of_the_work(tmp_path: Path) -> None:
    assert _run(tmp_path, _lose_a_peer) == [0, -9]


def test_a_group_of_one_exchanges_on_the_host() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.arange(3.0, device="xla")
        y = x * 2
        dist.all_reduce(y)
        gathered = [torch.empty(3, device="xla")]
        dist.all_gather(gathered, y)
        assert y.tolist() == gathered[0].tolist() == [0.0, 2.0, 4.0]
        leaf = torch.ones(2, device="xla", requires_grad=True)
        dist.broadcast(leaf.detach(), 0)
        assert leaf.grad is None and leaf.is_leaf
    finally:
        dist.destroy_process_group()


def test_a_group_without_the_host_is_refused() -> None:
    class Group:
        _device_types = [torch.device("cuda")]

    with pytest.raises(RuntimeError, match="allreduce got tensors on xla, and its group has a backend for cuda alone"):
        staged_collectives._check("allreduce_", Group())
