"""The devices or processes of a mesh on `xla`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from torch_xla._engine.distributed import init_process_group, torch_device_mesh
from torch_xla._engine.processes import identity, spmd_mode


@pytest.mark.parametrize(("count", "spmd", "expected"), [(1, False, False), (4, False, True), (4, True, False)])
def test_processes_of_one_device_each_are_a_mesh(
    count: int, spmd: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "process_count", lambda: count)
    monkeypatch.setattr(spmd_mode, "is_on", lambda: spmd)
    assert torch_device_mesh.means_processes() is expected


def test_a_mesh_of_this_process_has_its_devices_and_no_groups() -> None:
    mesh = DeviceMesh("xla", [0])
    assert mesh.size() == 1 and list(mesh.get_coordinate() or ()) == [0] and mesh.device_type == "xla"


def test_a_program_for_several_processes_may_be_run_by_one() -> None:
    init_process_group.register()
    dist.init_process_group("xla", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = DeviceMesh("xla", [0])
        assert torch_device_mesh.means_processes() and mesh.get_group() is not None and mesh.get_local_rank() == 0
        x = distribute_tensor(torch.arange(6.0).view(2, 3), mesh, [Shard(0)])
        assert (x @ x.t()).full_tensor().tolist() == [[5.0, 14.0], [14.0, 50.0]]
    finally:
        dist.destroy_process_group()
    assert not torch_device_mesh.means_processes()


@pytest.mark.parametrize("makes", [lambda: None, lambda: torch.Generator("xla")], ids=["device", "generator"])
def test_parts_of_a_tensor_draw_other_numbers_and_go_on_from_one_state(makes: Callable[[], Any]) -> None:
    found = []
    for first in (0, 4, 4):
        torch.manual_seed(3)
        generator = makes()
        if generator is not None:
            generator.manual_seed(3)
        with torch_device_mesh.drawing(first, generator):
            part = torch.rand(4, device="xla").tolist()
        found.append((part, torch.rand(4, device="xla", generator=generator).tolist()))
    torch.manual_seed(3)
    expected = torch.rand(4, device="xla").tolist()
    assert found[0][0] == expected  # the first part is drawn as the whole would be
    assert found[1][0] != expected and found[1] == found[2]
    assert found[0][1] == found[1][1] != expected


def test_a_generator_of_another_device_is_refused() -> None:
    with (
        pytest.raises(RuntimeError, match="Expected a 'xla' device type for generator but found 'cpu'"),
        torch_device_mesh.drawing(0, torch.Generator()),
    ):
        pass
