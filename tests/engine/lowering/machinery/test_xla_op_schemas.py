"""Operators of `torch.ops.xla`: one rule on every device, and gradients."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import pytest
import torch

from torch_xla._engine.lowering.machinery import registry, xla_op_schemas

NAME = "test_scaled_sum"


@pytest.fixture(scope="module")
def op() -> Iterator[Any]:
    """An operator that is defined for these tests."""
    schema = f"{NAME}(Tensor x, Tensor? bias, float scale=2.0) -> (Tensor, Tensor)"
    made = xla_op_schemas.define(schema, lambda x, bias, scale=2.0: (x.new_empty(x.shape[:-1]), torch.empty_like(x)))

    @registry.lowers(made)
    def rule(x: Any, bias: Any, scale: Any = 2.0) -> list[Any]:
        scaled = x * jnp.asarray(scale, x.dtype)
        return [scaled.sum(-1), scaled if bias is None else scaled + bias]

    def backward(inputs: dict[str, Any], by_sum: torch.Tensor, by_scaled: torch.Tensor) -> dict[str, Any]:
        scale = inputs["scale"]
        found = {"x": (by_sum[..., None] + by_scaled) * scale}
        return found if inputs["bias"] is None else {**found, "bias": by_scaled}

    xla_op_schemas.differentiate(made, backward)
    yield made
    registry._rules.pop(made)


def test_a_rule_computes_on_the_cpu_too_with_gradients(op: Any) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    bias = torch.ones(2, 2, requires_grad=True)
    total, scaled = op(x, bias, 3.0)
    assert total.tolist() == [9, 21] and scaled.tolist() == [[4, 7], [10, 13]]
    (total.sum() + scaled[0].sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [[6, 6], [3, 3]]
    assert bias.grad is not None and bias.grad.tolist() == [[1, 1], [0, 0]]
    assert op(x, None)[1].tolist() == [[2, 4], [6, 8]]  # its defaults


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.complex64, torch.float64], ids=str)
def test_the_cpu_takes_what_the_rule_takes(op: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 2], [3, 4]]).to(dtype)
    x = (x * (1 + 1j)).conj() if dtype.is_complex else x.t()
    total, scaled = op(x, None)
    assert scaled.dtype == dtype and torch.equal(scaled, (x * 2).resolve_conj())
    assert torch.equal(total, (x * 2).sum(-1).to(dtype))
    total, scaled = op(torch.zeros(0, 2, dtype=dtype), None)
    assert total.shape == (0,) and scaled.shape == (0, 2)


def test_a_trace_sees_sizes_without_values(op: Any) -> None:
    total, scaled = op(torch.empty(5, 3, device="meta"), None)
    assert total.shape == (5,) and scaled.shape == (5, 3) and scaled.device.type == "meta"


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_a_mark_is_a_copy_whose_attributes_are_an_object(device: str) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    marked = torch.ops.xla.mark_tensor(x, "net", 0, "1", True, '{"a": 1}')
    marked.sum().backward()
    assert marked.tolist() == [1, 1] and x.grad is not None and x.grad.tolist() == [1, 1]
    assert marked.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() or device == "xla"
    with pytest.raises(
        ValueError, match=r"mark_tensor\(\) takes the attributes of 'net' as a JSON object; got '\[1\]'"
    ):
        torch.ops.xla.mark_tensor(x, "net", 0, "1", True, "[1]")
