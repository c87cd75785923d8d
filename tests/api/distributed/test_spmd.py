"""Meshes, and sharding over a mesh of one device."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import tensor as distributed_tensor

import torch_xla
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
from torch_xla.distributed.spmd import mesh

ONE = xs.Mesh([0], (1, 1), ("data", "model"))
TWO = xs.Mesh([0, 1], (2, 1), ("data", "model"))


def test_a_mesh_tells_its_shape() -> None:
    mesh = xs.Mesh(np.array(range(8)), (4, 2), axis_names=("fsdp", "tensor"))
    assert mesh.size() == 8 and mesh.shape() == OrderedDict(fsdp=4, tensor=2)
    assert mesh.get_logical_mesh().tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [mesh.get_axis_name_idx(name) for name in ("fsdp", "tensor", "data")] == [0, 1, None]
    assert xs.Mesh([1, 0], (2,)).shape() == {0: 2}
    hybrid = xs.HybridMesh(ici_mesh_shape=(2, 2), axis_names=("data", "model"))
    assert hybrid.get_logical_mesh().tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "arguments, what",
    [
        (([0, 1], (3,)), "2 device ids do not fill a mesh of shape"),
        (([0, 2], (2,)), "expected 0 to 1, each once"),
        (([1, 1], (2,)), "expected 0 to 1, each once"),
        (([0], (1,), ("a", "b")), "2 axis names for 1 axes"),
        (([0], (1, 1), ("a", "a")), "an axis name occurs twice"),
    ],
)
def test_a_mesh_that_does_not_fit_together_is_refused(arguments: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what) as refused:
        xs.Mesh(*arguments)
    assert isinstance(refused.value, AssertionError)  # as PyTorch/XLA raises it


def test_a_mesh_over_slices_has_neighbours_within_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="asks for 2 slices of 4 devices; there are 1 of 1"):
        xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1))
    with pytest.raises(AssertionError, match="must have an entry for each axis"):
        xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2,))
    # As the devices of two slices are listed that take turns.
    monkeypatch.setattr(mesh.runtime, "slices_of", lambda devices: [[0, 2, 4, 6], [1, 3, 5, 7]])
    found = xs.HybridMesh(ici_mesh_shape=(1, 2, 2), dcn_mesh_shape=(2, 1, 1), axis_names=("data", "fsdp", "tensor"))
    assert found.shape() == OrderedDict(data=2, fsdp=2, tensor=2)
    assert found.get_logical_mesh().tolist() == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    assert xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(1, 2)).get_logical_mesh().tolist() == [
        [0, 2, 1, 3],
        [4, 6, 5, 7],
    ]


def test_a_mesh_is_written_and_read() -> None:
    square = xs.Mesh([3, 2, 1, 0], (2, 2), ("data", "model"))
    assert xs.Mesh.from_str(str(square)) == square and hash(xs.Mesh.from_str(str(square))) == hash(square)
    assert xs.Mesh.from_str("") is None
    for text in ("nonsense", "[1]", "{'device_ids': [0]}"):
        with pytest.raises(ValueError, match="is not what str"):
            xs.Mesh.from_str(text)


def test_the_global_mesh_is_the_one_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_xla._engine.planning.mesh_in_use._default", None)
    assert xs.get_global_mesh() is None
    xs.set_global_mesh(TWO)
    assert xs.get_global_mesh() is TWO
    with pytest.raises(TypeError, match="expected a Mesh, or None, not list"):
        xs.set_global_mesh([0, 1])  # type: ignore[arg-type]
    xs.set_global_mesh(None)
    assert xs.get_global_mesh() is None
    assert xs.get_1d_mesh("data").size() == torch_xla.device_count()


@pytest.mark.parametrize("spec", [(None, None), ("data", "model"), (0, None), (("data", "model"), None)])
def test_sharding_over_one_device_keeps_the_tensor(spec: xs.PartitionSpec) -> None:
    t = torch.ones(2, 3, device="xla")
    marked = xs.mark_sharding(t, ONE, spec)
    assert marked.global_tensor is t and marked.sharding_spec == "{replicated}"
    assert [shard.data.shape for shard in marked.local_shards] == [(2, 3)]
    assert xs.clear_sharding(t) is t


def test_gradients_flow_through_a_marked_intermediate() -> None:
    x = torch.tensor([1.0, 2.0], device="xla", requires_grad=True)
    y = x * 3
    marked = xs.mark_sharding_with_gradients(y, ONE, (0,))
    assert marked is not y and marked.tolist() == [3, 6]
    marked.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3, 3]


@pytest.mark.parametrize(
    "device, mesh, spec, error, what",
    [
        ("xla", TWO, ("data", None), ValueError, r"the mesh \(2, 1\) has 2 devices, and this program has 1"),
        ("xla", ONE, ("data",), ValueError, r"has 1 entries, but the tensor of shape \[2, 3\] has 2 dimensions"),
        ("xla", ONE, ("fsdp", None), ValueError, "the mesh has no axis 'fsdp'; it has"),
        ("xla", ONE, (2, None), ValueError, "the mesh has no axis 2"),
        ("xla", ONE, ("data", 0), ValueError, "an axis of the mesh occurs twice"),
        ("cpu", ONE, ("data", None), ValueError, "expected a tensor on xla, not on cpu"),
    ],
)
def test_a_sharding_that_cannot_be_is_refused(
    device: str, mesh: xs.Mesh, spec: Any, error: type[Exception], what: str
) -> None:
    for mark in (xs.mark_sharding, xs.mark_sharding_with_gradients):
        with pytest.raises(error, match=rf"{mark.__name__}\(\): .*{what}"):
            mark(torch.ones(2, 3, device=device), mesh, spec)


def test_a_loader_takes_a_sharding_spec() -> None:
    spec = xs.ShardingSpec(ONE, ("data", None))
    batches = [torch.ones(2, 3), torch.ones(2, 3) * 2]
    loader = pl.MpDeviceLoader(batches, torch_xla.device(), input_sharding=spec)
    assert [batch.sum().item() for batch in loader] == [6, 12]
    with pytest.raises(ValueError, match="has 2 devices, and this program has 1"):
        list(pl.MpDeviceLoader(batches, torch_xla.device(), input_sharding=xs.ShardingSpec(TWO, ("data", None))))


def test_distributed_tensors_on_one_device() -> None:
    mesh = distributed_tensor.DeviceMesh("xla", [0])
    t = xs.xla_distribute_tensor(torch.ones(2), mesh, [distributed_tensor.Shard(0)])
    assert t.placements == (distributed_tensor.Shard(0),) and t.full_tensor().tolist() == [1, 1]
    module = xs.xla_distribute_module(torch.nn.Linear(1, 1), mesh)
    assert module(torch.ones(1, 1, device="xla")).shape == (1, 1)
    with pytest.raises(ValueError, match="give the mesh"):
        xs.xla_distribute_module(torch.nn.Linear(1, 1))
