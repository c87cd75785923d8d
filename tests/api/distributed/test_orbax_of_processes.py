"""Several processes write checkpoints in Orbax's format, and read them: tensors that are whole, and divided ones."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.api.distributed import test_spmd_processes
from tests.api.distributed.test_orbax_checkpoints import READS, manager, needs_orbax, run
from tests.support import fleet


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 5, bias=False)).to("xla", torch.bfloat16)


def divided(model: nn.Module) -> nn.Module:
    return fully_shard(model, mesh=init_device_mesh("xla", (2,)))


def shown(state: dict[str, Any]) -> dict[str, list[float]]:
    full = {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in state.items()}
    return {name: each.float().tolist() for name, each in full.items()}


def begin() -> int:
    warnings.simplefilter("ignore")
    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    return dist.get_rank()


def write_and_read(folder: str) -> tuple[Any, ...]:
    """Write a model that the processes divide, and one that each has; return what they read."""
    rank = begin()
    model, whole, count = divided(network(0)), network(1), torch.tensor(rank + 5)
    kept = manager(Path(folder), format="orbax", max_to_keep=2)
    for step in range(3):
        state = {"divided": model.state_dict(), "whole": whole.state_dict(), "count": count, "note": f"of {rank}"}
        assert kept.save_async(step, state)
        with torch.no_grad():
            for each in (*model.parameters(), *whole.parameters()):
                each.mul_(0)  # the thread writes what was there
    kept.save(1, {"divided": model.state_dict()})  # once more, of zeros
    again, other = divided(network(2)), network(3)
    into = {"divided": again.state_dict(), "whole": other.state_dict(), "count": count, "note": ""}
    kept.restore(2, into)
    zeros = [shown(into["divided"]), shown(into["whole"]), into["count"].item(), into["note"]]
    first = manager(Path(f"{folder}/first"), format="orbax")
    model, whole = divided(network(0)), network(1)
    first.save(0, {"divided": model.state_dict(), "whole": whole.state_dict()})
    del into["count"], into["note"]
    assert first.restore_latest(into) == 0
    return kept.all_steps(), zeros, shown(into["divided"]), shown(into["whole"])


@needs_orbax
@pytest.mark.slow
def test_two_processes_write_what_any_number_reads(tmp_path: Path) -> None:
    found = fleet.fleet_of(2).run(write_and_read, str(tmp_path))
    expected = shown(network(0).state_dict()), shown(network(1).state_dict())
    nothing = {name: (torch.tensor(each) * 0).tolist() for name, each in expected[0].items()}
    assert found == [([1, 2], [nothing, nothing, 5, "of 0"], *expected)] * 2
    into = {"divided": network(4).state_dict(), "whole": network(5).state_dict()}
    assert manager(tmp_path / "first").restore_latest(into) == 0
    assert (shown(into["divided"]), shown(into["whole"])) == expected
    steps, read = json.loads(run(READS, str(tmp_path / "first")))  # plain Orbax, without torch_xla
    assert steps == [0]
    assert read["divided"] == {name: ["bfloat16", each] for name, each in expected[0].items()}


def write_what_is_refused(folder: str) -> list[str]:
    rank = begin()
    kept, found = manager(Path(folder), format="orbax"), []
    with pytest.raises((TypeError, RuntimeError)) as refused:
        kept.save(1, {"w": torch.ones(2, device="xla"), "dtype": torch.float32})
    found.append(f"{refused.type.__name__}: {refused.value}")
    kept.save(2, {"w": torch.ones(2, device="xla") + rank})
    return [*found, str(kept.all_steps())]


@needs_orbax
@pytest.mark.slow
def test_all_processes_raise_what_the_writing_one_raises(tmp_path: Path) -> None:
    first, second = fleet.fleet_of(2).run(write_what_is_refused, str(tmp_path))
    assert first[0].startswith("TypeError: CheckpointManager(format='orbax'): 'dtype' is a dtype")
    assert second[0] == f"RuntimeError: the process that writes for all could not: {first[0]}"
    assert first[1] == second[1] == "[2]"


@needs_orbax
@pytest.mark.slow
def test_a_mesh_over_processes_is_written_and_read_by_one(tmp_path: Path) -> None:
    assert test_spmd_processes.run(tmp_path, 2, "spmd_in_orbax") == [[[3], 3, True]] * 2
    assert test_spmd_processes.run(tmp_path, 1, "spmd_in_orbax") == [[[3], 3, True]]
