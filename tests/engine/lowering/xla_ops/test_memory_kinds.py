"""Values in memory of the host or the device: the same values, and the same gradients."""

import jax
import pytest
import torch

from torch_xla._engine.lowering.xla_ops import memory_kinds


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_a_move_changes_no_number(device: str) -> None:
    x = torch.tensor([1.0, 2.0, -0.0], device=device, requires_grad=True)
    found = torch.ops.xla.place_to_device(torch.ops.xla.place_to_host(x) * 2)
    assert found.tolist() == [2, 4, 0] and found.device == x.device
    found.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]
    assert torch.ops.xla.place_to_host(torch.empty(2, 3, device="meta")).shape == (2, 3)


def test_the_program_says_where() -> None:
    def there_and_back(x: jax.Array) -> jax.Array:
        return memory_kinds.place_to_device(memory_kinds.place_to_host(x) + 1)

    text = (
        jax.jit(there_and_back)
        .trace(jax.ShapeDtypeStruct((4,), "float32"))
        .lower(lowering_platforms=("tpu",))
        .as_text()
    )
    assert "pinned_host" in text and text.index("pinned_host") < text.rindex('"device"')
