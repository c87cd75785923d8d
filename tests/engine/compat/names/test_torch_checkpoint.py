"""A plain tensor is written whole, at offset 0."""

import torch
from torch.distributed.checkpoint.planner import WriteItemType

from torch_xla._engine.compat.names import torch_checkpoint


def test_all_of_a_tensor_is_written_under_its_name() -> None:
    x = torch.arange(6.0).view(2, 3)
    (item,) = torch_checkpoint.write_items("weight", x)
    assert (item.index.fqn, item.type) == ("weight", WriteItemType.TENSOR)
    assert item.tensor_data.size == x.shape and item.tensor_data.properties.dtype is torch.float32
    (chunk,) = torch_checkpoint.chunks(x)
    assert (tuple(chunk.offsets), tuple(chunk.sizes)) == ((0, 0), (2, 3)) and item.tensor_data.chunk == chunk


def test_nested_states_are_made_flat_and_put_together() -> None:
    state = {"model": {"w": torch.ones(1)}, "steps": [1, 2]}
    flat, paths = torch_checkpoint.flatten_state_dict(state)  # type: ignore[arg-type]
    assert set(flat) == {"model.w", "steps.0", "steps.1"} or set(flat) == {"model.w", "steps"}
    again: dict[str, object] = {}
    for name, value in flat.items():
        torch_checkpoint.set_element(again, paths[name], value)  # type: ignore[arg-type]
    assert again == state


def test_a_part_of_a_tensor_is_a_view() -> None:
    x = torch.zeros(4, 4)
    part = torch_checkpoint.narrow_tensor_by_index(x, (1, 2), (2, 2))
    part.fill_(1)
    assert x.sum() == 4 and x[1:3, 2:].all()
