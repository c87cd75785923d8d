"""Operators that PyTorch breaks into smaller ones are lowered piece by piece."""

import jax
import numpy as np
import pytest
import torch

from tests.support.rules import to_jax, to_torch
from torch_xla._engine.lowering.fx_graphs import decompositions
from torch_xla._engine.lowering.machinery.registry import rule_of

aten = torch.ops.aten
X = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]])
CALLS = [
    (aten.channel_shuffle.default, (torch.arange(24.0).reshape(1, 4, 2, 3), 2), {}),
    (aten.bilinear.default, (X, X, torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0)), None), {}),
    (aten.pairwise_distance.default, (X, X.flip(0)), {"p": 1.0}),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call[0]))
def test_the_pieces_compute_what_the_whole_does(call: tuple) -> None:  # type: ignore[type-arg]
    op, args, kwargs = call
    rule = decompositions.rule_for(op, args, kwargs) if rule_of(op) is None else rule_of(op)
    assert rule is not None and not rule.random
    with jax.enable_x64(True):
        given = [to_jax(each) if isinstance(each, torch.Tensor) else each for each in args]
        found = to_torch(rule.lower(*given, **kwargs))
    torch.testing.assert_close(found, op(*args, **kwargs))


def test_what_has_a_rule_stays_whole_and_what_has_no_pieces_has_none() -> None:
    assert aten.add.Tensor not in decompositions.table() and not decompositions.exists(aten.histogram.bin_ct)
    assert all(rule_of(op) is None for op in list(decompositions.table())[:100])
    assert decompositions.rule_for(aten.histogram.bin_ct, (X[0],), {}) is None


def test_a_rule_is_of_one_call_and_found_while_somebody_holds_it() -> None:
    first = decompositions.rule_for(aten.pairwise_distance.default, (X, X), {})
    second = decompositions.rule_for(aten.pairwise_distance.default, (X[:1], X[:1]), {})
    assert first is not None and second is not None and first.op != second.op
    assert rule_of(first.op) is first and rule_of(second.op) is second


def test_every_draw_has_a_key_of_its_own() -> None:
    rule = decompositions.rule_for(aten.rand_like.default, (X,), {})
    assert rule is not None and rule.random
    with jax.enable_x64(True):
        one, same, other = (np.asarray(rule.lower(to_jax(X), key=jax.random.key(n, impl="rbg"))) for n in (1, 1, 2))
    assert one.shape == (2, 3) and (one >= 0).all() and (one < 1).all()
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert len(np.unique(one)) == 6


@pytest.mark.parametrize("bounds", [(-(2**62), 2**62), (-(2**63), 2**63 - 1)])
def test_integers_of_a_range_that_int64_does_not_hold_are_drawn_alike_in_a_graph(bounds: tuple[int, int]) -> None:
    def draw() -> torch.Tensor:
        return torch.randint(*bounds, (40,), device="xla")

    drawn = []
    for function in (draw, torch.compile(draw, backend="openxla")):
        torch.manual_seed(3)
        drawn.append(function().cpu())
    assert torch.equal(*drawn) and (drawn[0] > 2**61).any() and (drawn[0] < -(2**61)).any()


def test_integers_lie_between_their_bounds() -> None:
    rule = decompositions.rule_for(aten.randint_like.low_dtype, (X.long(), -3, 4), {})
    assert rule is not None and rule.random
    with jax.enable_x64(True):
        drawn = np.asarray(rule.lower(to_jax(X.long()), -3, 4, key=jax.random.key(0, impl="rbg")))
    assert drawn.dtype == np.int64 and drawn.min() >= -3 and drawn.max() < 4
