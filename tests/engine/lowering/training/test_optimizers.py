"""The fused optimizer steps, compared with PyTorch's fused CPU kernels."""

import math
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.support.rules import apply_rule, check_rule
from torch_xla._engine.lowering.machinery.registry import rule_of

aten = torch.ops.aten
SHAPES = [(3, 4), (), (5,), (0, 2)]
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
SGD = {
    "weight_decay": 0.0,
    "momentum": 0.9,
    "lr": 0.1,
    "dampening": 0.0,
    "nesterov": False,
    "maximize": False,
    "is_first_step": False,
}
ADAGRAD = {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.0, "eps": 1e-10, "maximize": False}


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def positive(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [t.abs() for t in tensors(seed, dtype)]


def steps(*counts: float) -> list[torch.Tensor]:
    return [torch.tensor(float(count)) for count in counts or (1, 2, 700, 3)]


def adam_lists(dtype: torch.dtype = torch.float32, amsgrad: bool = False) -> list[list[torch.Tensor]]:
    maxima = positive(5, dtype) if amsgrad else []
    return [tensors(1, dtype), tensors(2, dtype), tensors(3, dtype), positive(4, dtype), maxima, steps()]


# PyTorch fuses some products with their sums, which rounds once instead of twice: a few units in the last place.
CLOSE = {"rtol": 3e-6, "atol": 1e-6}


@pytest.mark.parametrize("op", [aten._fused_adam.default, aten._fused_adamw.default], ids=str)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_takes_every_option(op: Any, amsgrad: bool) -> None:
    for weight_decay, maximize in product((0.0, 0.02), (False, True)):
        options = {**ADAM, "amsgrad": amsgrad, "weight_decay": weight_decay, "maximize": maximize}
        check_rule(op, *adam_lists(amsgrad=amsgrad), **options, **CLOSE)


def test_adam_interpolates_from_the_nearer_end() -> None:
    for beta1 in (0.0, 0.3, 0.5, 0.9):
        check_rule(aten._fused_adam.default, *adam_lists(), **{**ADAM, "beta1": beta1, "beta2": 0.9}, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_adam_keeps_the_dtype_of_every_list(dtype: torch.dtype) -> None:
    options = {**ADAM, "weight_decay": 0.02}
    check_rule(aten._fused_adamw.default, *adam_lists(dtype), **options)
    got = apply_rule(aten._fused_adamw.default, *adam_lists(dtype), **options)
    assert {tensor.dtype for part in got for tensor in part} == {dtype}


@pytest.mark.parametrize("lr_dtype", [torch.float32, torch.float64], ids=str)
def test_adam_takes_its_learning_rate_from_a_tensor(lr_dtype: torch.dtype) -> None:
    options = {**ADAM, "lr": torch.tensor(0.1, dtype=lr_dtype), "weight_decay": 0.02}
    for op in (aten._fused_adam.tensor_lr, aten._fused_adamw.tensor_lr):
        check_rule(op, *adam_lists(), **options, **CLOSE)


LISTS: list[tuple[Any, list[list[torch.Tensor]], dict[str, Any]]] = [
    (aten._fused_adam.default, adam_lists(amsgrad=True), {**ADAM, "amsgrad": True}),
    (aten._fused_sgd.default, [tensors(1), tensors(2), tensors(3)], SGD),
    (aten._fused_adagrad.default, [tensors(1), tensors(2), positive(3), steps()], ADAGRAD),
]


@pytest.mark.parametrize(("op", "lists", "options"), LISTS, ids=[str(op) for op, _, _ in LISTS])
def test_gradients_are_unscaled_and_returned(op: Any, lists: Any, options: dict[str, Any]) -> None:
    for scale in (torch.tensor(8.0), torch.tensor([0.3])):
        check_rule(op, *lists, **options, grad_scale=scale, found_inf=torch.zeros_like(scale), **CLOSE)


@pytest.mark.parametrize(("op", "lists", "options"), LISTS, ids=[str(op) for op, _, _ in LISTS])
def test_nothing_changes_after_a_gradient_that_was_not_finite(op: Any, lists: Any, options: dict[str, Any]) -> None:
    found = {"grad_scale": torch.tensor(8.0), "found_inf": torch.tensor(1.0)}
    check_rule(op, *lists, **options, **found, rtol=0, atol=0)


def test_sgd_takes_every_option() -> None:
    for nesterov, maximize, weight_decay, first in product((False, True), (False, True), (0.0, 0.02), (False, True)):
        options = {
            **SGD,
            "nesterov": nesterov,
            "maximize": maximize,
            "weight_decay": weight_decay,
            "is_first_step": first,
            "dampening": 0.0 if nesterov else 0.3,
        }
        check_rule(aten._fused_sgd.default, tensors(1), tensors(2), tensors(3), **options, **CLOSE)


def test_sgd_without_momentum_has_no_buffers() -> None:
    check_rule(aten._fused_sgd.default, tensors(1), tensors(2), [], **{**SGD, "momentum": 0.0}, **CLOSE)
    rate = torch.tensor(0.1)
    check_rule(aten._fused_sgd.tensor_lr, tensors(1), tensors(2), [], **{**SGD, "momentum": 0.0, "lr": rate}, **CLOSE)


def test_sgd_does_not_read_the_buffers_of_a_first_step() -> None:
    garbage = [torch.full_like(t, torch.nan) for t in tensors(1)]
    check_rule(aten._fused_sgd.default, tensors(1), tensors(2), garbage, **{**SGD, "is_first_step": True}, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_adagrad_takes_every_option(dtype: torch.dtype) -> None:
    tolerance = CLOSE if dtype is torch.float32 else {}
    for maximize, weight_decay in product((False, True), (0.0, 0.02)):
        options = {**ADAGRAD, "maximize": maximize, "weight_decay": weight_decay}
        lists = [tensors(1, dtype), tensors(2, dtype), positive(3, dtype), steps()]
        check_rule(aten._fused_adagrad.default, *lists, **options, **tolerance)
        check_rule(aten._fused_adagrad.tensor_lr, *lists, **{**options, "lr": torch.tensor(0.1)}, **tolerance)


def test_numbers_that_change_between_steps_give_the_same_results() -> None:
    names = ["lr", "beta1", "beta2", "weight_decay", "eps"]
    options = {**ADAM, "weight_decay": 0.02}
    for op in (aten._fused_adam.default, aten._fused_adamw.default):
        rule = rule_of(op)
        assert rule is not None
        lists = adam_lists()
        with jax.enable_x64(True):
            arrays = jax.tree.map(lambda t: jnp.asarray(t.numpy()), lists)
            fixed = {name: options[name] for name in ("amsgrad", "maximize")}
            run = jax.jit(lambda arrays, numbers, lower=rule.lower, fixed=fixed: lower(*arrays, **numbers, **fixed))
            got = run(arrays, {name: options[name] for name in names})
        for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(op(*lists, **options)), strict=True):
            assert ours.dtype == np.float32
            torch.testing.assert_close(torch.from_numpy(np.array(ours)), theirs, **CLOSE)


def test_no_decay_is_none_known_or_as_an_argument() -> None:
    params = [torch.tensor([math.inf, math.nan, 1.0])]
    rest = [torch.tensor([1.0, 2.0, -0.0])], [torch.zeros(3)]
    cases: list[tuple[Any, list[Any], dict[str, Any]]] = [
        (aten._fused_adam.default, [params, *rest, [torch.ones(3)], [], [torch.tensor(1.0)]], ADAM),
        (aten._fused_adamw.default, [params, *rest, [torch.ones(3)], [], [torch.tensor(1.0)]], ADAM),
        (aten._fused_sgd.default, [params, *rest], SGD),
        (aten._fused_adagrad.default, [params, *rest, [torch.tensor(1.0)]], ADAGRAD),
    ]
    for op, lists, options in cases:
        known, argument = (apply_rule(op, *lists, **options, floats_are_arguments=each) for each in (False, True))
        for one, other in zip(jax.tree.leaves(known), jax.tree.leaves(argument), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=0, equal_nan=True)
