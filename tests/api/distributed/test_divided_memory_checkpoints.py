"""States that several processes divide are kept in memory, and saved to a path: FSDP, tensors in parallel, SPMD."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import torch_xla
from tests.api.distributed.test_spmd_processes import run
from tests.support import fleet
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, _keeper, prime_optimizer


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).to("xla")


def by_fsdp(model: nn.Sequential) -> nn.Module:
    return fully_shard(model, mesh=init_device_mesh("xla", (2,)))


def by_tensors(model: nn.Sequential) -> nn.Module:
    return parallelize_module(model, init_device_mesh("xla", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})


def whole(state: dict[str, Any]) -> dict[str, list[float]]:
    full = {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in state.items()}
    return {name: each.tolist() for name, each in full.items()}


def keep(folder: str, how: str) -> list[tuple[Any, ...]]:
    """Train, keep a state in memory, and lose the memory of process 0, then all; return what comes back from where."""
    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    divided: Callable[[nn.Sequential], nn.Module] = globals()[how]
    rank, root, found = dist.get_rank(), _keeper.ROOT, []
    _keeper.ROOT = Path(folder, f"host{rank}")
    _keeper.ROOT.mkdir()
    try:
        model = divided(network())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        prime_optimizer(optimizer)
        for step in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 6, device="xla") * (step + 1)).square().mean().backward()
            optimizer.step()
            torch_xla.sync()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "next": 2}
        manager = CheckpointManager(f"{folder}/steps", 1, memory_every=1, chkpt_on_preemption=False)
        manager.save_async(1, state)
        manager.join()
        moments = {
            f"{index}.{name}": each
            for index, values in optimizer.state_dict()["state"].items()
            for name, each in values.items()
        }
        expected = whole({**model.state_dict(), **moments})
        for lost in ((), (0,), (0, 1)):
            manager.join()
            for head in manager._memory.folder.glob("*.head") if rank in lost else ():  # type: ignore[union-attr]
                head.unlink()
            dist.barrier()
            with torch.no_grad():
                for each in (*model.parameters(), *moments.values()):
                    each.zero_()
            step = manager.restore_latest(state)
            is_equal = whole({**model.state_dict(), **moments}) == expected
            found.append((step, manager.restored_from, is_equal))
            dist.barrier()
    finally:
        for keeper in _keeper._keepers.values():
            keeper.kill()
            keeper.wait()
        _keeper._keepers.clear()
        _keeper.ROOT = root
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", ["by_fsdp", "by_tensors"])
def test_divided_parameters_come_back_from_each_place(how: str, tmp_path: Path) -> None:
    for rank, found in enumerate(fleet.fleet_of(2).run(keep, str(tmp_path), how)):
        assert found == [(1, "memory", True), (1, "memory" if rank else "peer", True), (1, "path", True)]


@pytest.mark.slow
def test_processes_of_one_program_keep_their_devices_parts(tmp_path: Path) -> None:
    for process, found in enumerate(run(tmp_path, 2, "spmd_in_memory")):
        assert found == [(1, "memory", True), (1, "memory" if process else "peer", True), (1, "path", True)]
    assert run(tmp_path, 1, "spmd_in_memory") == [[(1, "path", True)]]
