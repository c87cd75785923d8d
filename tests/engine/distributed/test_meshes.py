"""What a mesh of `xla` devices is made of."""

import pytest
from torch.distributed.device_mesh import DeviceMesh

from torch_xla._engine.client import processes, virtual
from torch_xla._engine.distributed import meshes


@pytest.mark.parametrize(("count", "spmd", "expected"), [(1, False, False), (4, False, True), (4, True, False)])
def test_processes_of_one_device_each_are_a_mesh(
    count: int, spmd: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "process_count", lambda: count)
    monkeypatch.setattr(virtual, "is_on", lambda: spmd)
    assert meshes.means_processes() is expected


def test_a_mesh_of_this_process_has_its_devices_and_no_groups() -> None:
    mesh = DeviceMesh("xla", [0])
    assert mesh.size() == 1 and list(mesh.get_coordinate() or ()) == [0] and mesh.device_type == "xla"
