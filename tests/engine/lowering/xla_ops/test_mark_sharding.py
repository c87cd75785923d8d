"""Marks in graphs of `torch.compile`: tensors pass through if nothing is divided, and mistakes raise errors."""

import pytest
import torch
from torch import Tensor

from torch_xla._engine.lowering.xla_ops import mark_sharding

MESH = str({"device_ids": [0, 1], "mesh_shape": (2, 1), "axis_names": ("x", "y")})


def test_a_mesh_is_read_from_its_text() -> None:
    assert mark_sharding.described(MESH) == ((0, 1), (2, 1), ("x", "y"))


@pytest.mark.parametrize("text", ["[1]", "{'a': 2}", "7", "Mesh(2)", ""])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not what str\\(\\) gives for a mesh"):
        mark_sharding.described(text)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_one_device_has_the_whole_and_gradients_pass(device: str) -> None:
    x = torch.ones(4, 2, device=device, requires_grad=True)
    marks = torch.ops.xla.aot_mark_sharding(x, MESH, "('x', None)")
    more = torch.ops.xla.dynamo_mark_sharding(marks, [0, 1], [2, 1], "('x', 'y')", "(0, None)")
    (more * 3).sum().backward()
    assert more.tolist() == [[1, 1]] * 4 and x.grad is not None and x.grad.tolist() == [[3, 3]] * 4


@pytest.mark.slow
def test_a_graph_sees_them() -> None:
    def step(x: Tensor) -> Tensor:
        return torch.ops.xla.aot_mark_sharding(x * 2, MESH, "('x', None)") + 1

    x = torch.ones(4, 2).to("xla")
    assert torch.compile(step, backend="openxla", fullgraph=True)(x).tolist() == [[3, 3]] * 4
    described = torch.ops.xla.aot_mark_sharding(torch.empty(4, 2, device="meta"), MESH, "('x', None)")
    assert described.shape == (4, 2) and described.device.type == "meta"
