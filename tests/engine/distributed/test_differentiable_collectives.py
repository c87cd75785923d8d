"""Collectives that gradients flow through: here with one process. With several: `test_collectives.py`."""

from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.distributed.differentiable_collectives import Exchanged, Gathered, Permuted, Reduced, Scattered

X = torch.tensor([[1.0, -2.0, 3.0], [0.0, 4.0, -1.0]])
GRAD = torch.arange(6.0).reshape(2, 3)
CALLS: dict[str, tuple[Any, tuple[Any, ...], float]] = {
    **{name: (Reduced, (name, 0.5, ()), 0.5) for name in ("sum", "min", "max")},
    "gathered": (Gathered, (1, 0, ()), 1.0),
    "permuted": (Permuted, ([(0, 0)],), 1.0),
    "exchanged": (Exchanged, (0, 1, ()), 1.0),
    "scattered": (Scattered, (0, ()), 1.0),
}


def test_one_process_keeps_values_and_gradients_but_for_the_scale() -> None:
    leaves = {name: X.to("xla").requires_grad_() for name in CALLS}
    results = {name: function.apply(leaves[name], *given) for name, (function, given, _) in CALLS.items()}
    for result in results.values():
        result.backward(GRAD.to("xla"))
    torch_xla.sync()  # one program for all
    for name, (_, _, scale) in CALLS.items():
        assert torch.equal(results[name].detach().cpu(), X * scale), name
        gradient = leaves[name].grad
        assert gradient is not None and torch.equal(gradient.cpu(), GRAD * scale), name


def test_other_reductions_have_no_gradient_and_say_so() -> None:
    result = Reduced.apply(X.to("xla").requires_grad_(), "mul", 1.0, ())
    with pytest.raises(NotImplementedError, match=r"all_reduce\('mul'\): gradients flow through sum, min and max only"):
        result.sum().backward()
    torch_xla.sync()  # the reduction, which no later test must find
