"""Views with one size of another tensor, and notes for readers."""

import jax
import jax.numpy as jnp
import pytest
import torch

from torch_xla._engine.lowering.xla_ops import dynamic_sizes

xla = torch.ops.xla


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_a_size_comes_from_another_tensor(device: str) -> None:
    x = torch.arange(3.0, device=device).reshape(1, 3).requires_grad_()
    other = torch.ones(2, 5, device=device)
    found = xla.dynamic_expand(x, [1, 3], other, 1, 0)
    assert found.tolist() == [[0, 1, 2]] * 5
    found.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[5, 5, 5]]
    flat = torch.arange(16.0, device=device)
    shaped = xla.dynamic_view(flat, [1, 4, 2], other, 1, 0, 0.5)
    assert shaped.shape == (2, 4, 2) and shaped.flatten().tolist() == flat.tolist()


def test_a_multiple_of_a_size() -> None:
    flat, other = torch.arange(20.0).requires_grad_(), torch.ones(2, 5)
    shaped = xla.dynamic_view(flat, [1, 2], other, 1, 0, 2.0)
    assert shaped.shape == (10, 2) and torch.equal(shaped.reshape(-1), flat)
    (shaped * 3).sum().backward()
    assert flat.grad is not None and flat.grad.tolist() == [3.0] * 20
    described = xla.dynamic_view(torch.empty(20, device="meta"), [1, 2], other.to("meta"), 1, 0, 2.0)
    assert described.shape == (10, 2)


def test_a_note_stands_in_the_locations_and_costs_nothing() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    found = xla.write_mlir_debuginfo(x, "layer 7")
    found.sum().backward()
    assert found.tolist() == [1, 2] and x.grad is not None and x.grad.tolist() == [1, 1]
    lowered = jax.jit(lambda x: dynamic_sizes.write_mlir_debuginfo(x, "layer 7")).lower(jnp.ones(2))
    assert "layer 7" in lowered.as_text(debug_info=True)
    entry = lowered.compile().as_text().partition("ENTRY")[2]
    assert "expand" not in entry and "broadcast" not in entry
