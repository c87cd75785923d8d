"""Functions whose sizes change, traced with symbols and run at the sizes of buckets."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torch_xla._engine.export import size_buckets
from torch_xla._engine.export.size_buckets import Bucket, cut, on_device, padded_to, trace
from torch_xla._engine.tensor.storage import value_of


def scores(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"all": x @ y.T, "sum": x.sum(0)}


def test_sizes_are_symbols_of_inputs_and_outputs() -> None:
    traced = trace(scores, (torch.ones(4, 3), torch.ones(5, 3)), {0: (0,), 1: (0,)})
    assert len(traced.symbols) == 2 and traced.weights == ()
    x, y = (described.shape for described in traced.inputs)
    whole, total = (described.shape for described in traced.outputs)
    assert whole == (x[0], y[0]) and x[1] == 3 and total == (3,)
    bucket = Bucket(traced, (8, 16))
    assert bucket.room_of(whole) in ((8, 16), (16, 8)) and bucket.room_of((x[0], 3, 7))[1:] == (3, 7)


def test_a_call_at_a_bucket_gives_what_the_sizes_do_with_gradients() -> None:
    weight = torch.nn.Parameter(torch.randn(3, 3))
    ours = torch.nn.Parameter(weight.detach().clone().to("xla"))

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ ours).softmax(0)

    traced = trace(function, (torch.ones(4, 3),), {0: (0,)})
    assert any(weight is ours for weight in traced.weights)
    x = torch.randn(5, 3)
    (found,) = size_buckets.Bucketed.apply(Bucket(traced, (8,)), (5,), *traced.weights, x)
    expected = torch.tanh(x @ weight).softmax(0)
    torch.testing.assert_close(found.detach().cpu(), expected.detach())
    grad = torch.randn(5, 3)
    found.backward(grad.to("xla"))
    expected.backward(grad)
    torch.testing.assert_close(ours.grad.cpu(), weight.grad)  # type: ignore[union-attr]
    with torch.no_grad():
        ours.mul_(2)  # what is named is what it is now
    (found,) = size_buckets.Bucketed.apply(Bucket(traced, (8,)), (5,), *traced.weights, x)
    torch.testing.assert_close(found.detach().cpu(), torch.tanh(x @ weight.detach() * 2).softmax(0))


def test_memory_with_room_is_used_as_it_lies() -> None:
    room = torch.arange(12.0).reshape(4, 3).to("xla")
    part = cut(room, (2, 3))
    assert part.tolist() == [[0, 1, 2], [3, 4, 5]] and value_of(part) is value_of(room)
    again = padded_to(part, (4, 3))
    assert value_of(again) is value_of(room) and again.tolist() == room.tolist()
    padded = padded_to(torch.ones(2, 3), (4, 3))
    assert padded.device.type == "xla" and padded.tolist() == [[1] * 3] * 2 + [[0] * 3] * 2
    assert on_device(part * 2, (4, 3)).tolist() == [[0, 2, 4], [6, 8, 10], [0] * 3, [0] * 3]
    assert on_device(room, (4, 3)) is room


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "bias", "groups"])
def test_attention_of_symbolic_sizes_is_attention(kind: str) -> None:
    heads = 2 if kind == "groups" else 4
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, heads, 5, 8), torch.randn(2, heads, 5, 6)
    bias: Any = {"mask": torch.rand(5, 5) > 0.4, "bias": torch.randn(5, 5)}.get(kind)
    if kind == "mask":
        bias[2] = False  # it sees nothing
    options = {"is_causal": kind == "causal", "enable_gqa": kind == "groups"}
    arrays = [None if each is None else jnp.asarray(each.numpy()) for each in (q, k, v, bias)]
    found = np.asarray(size_buckets._attention(*arrays, **options))
    expected = F.scaled_dot_product_attention(q, k, v, bias, **options)
    torch.testing.assert_close(torch.from_numpy(np.array(found)), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(NotImplementedError, match="draws random numbers"):
        size_buckets._attention(*arrays, dropout_p=0.5)


def test_what_is_no_function_of_its_arguments_is_refused() -> None:
    norm = torch.nn.BatchNorm1d(3).train().to("xla")
    for function, words in (
        (lambda x: norm(x), "writes to 'of_norm.running_mean'|writes to .*running"),
        (lambda x: F.dropout(x), "draws random numbers"),
        (lambda x: (x * 2, 3), "it returned a number or None"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            trace(function, (torch.ones(4, 3),), {0: (0,)})
