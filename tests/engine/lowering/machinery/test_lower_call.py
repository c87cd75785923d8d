"""A plan becomes JAX operations: casts as PyTorch casts, arguments in their places, results as promised."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.support.rules import to_jax, to_torch
from torch_xla._engine import dtypes
from torch_xla._engine.ir.call_plan import Number, Operand, Plan
from torch_xla._engine.ir.value_spec import contiguous_stride, spec_of
from torch_xla._engine.lowering.machinery.lower_call import (
    NeedsStaticNumber,
    apply_rule,
    arguments_of,
    cast,
    flatten,
    lower,
)

aten = torch.ops.aten
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def spec(*size: int, dtype: torch.dtype = torch.float32):  # type: ignore[no-untyped-def]
    return spec_of(size, contiguous_stride(size), dtype)


@pytest.mark.parametrize("source", [*DTYPES, torch.complex128], ids=str)
def test_casts_are_those_of_pytorch(source: torch.dtype) -> None:
    numbers = [0, 1, 2.75, 100] if not source.is_complex else [0, 1j, 2.75 + 1j, 100]
    host = torch.tensor(numbers).to(source)
    for target in DTYPES:
        with jax.enable_x64(True):
            ours = to_torch(cast(to_jax(host), dtypes.to_jax(target)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the imaginary part, once
            expected = host.to(target)
        assert ours.dtype == target and torch.equal(ours, expected), (source, target)


def test_operands_and_numbers_go_to_their_places() -> None:
    plan = Plan(
        "test::places",
        ((Operand(1), (Operand(0), 7), Number(1)), {"other": Number(0)}),
        (spec(2), spec(2)),
        (float, int),
        (spec(2),),
        compute_dtype=torch.float64,
    )
    with jax.enable_x64(True):
        args, kwargs = arguments_of(plan, [jnp.zeros(2, np.float32), jnp.ones(2, np.float32)], [0.5, 3])
    assert args[0].tolist() == [1, 1] and args[1][0].tolist() == [0, 0] and args[1][1] == 7
    assert args[2] == 3 and kwargs == {"other": 0.5} and args[0].dtype == np.float64


def test_results_nest_as_the_plan_says() -> None:
    plan = Plan("test::nested", ((), {}), (), (), (spec(),) * 4, structure=(-1, -2, 2, -1))
    assert flatten((1, 2, [3, 4], 5), plan) == [1, 3, 4, 5]
    assert flatten(7, replace(plan, structure=(-1,))) == [7] and flatten((7, 8), replace(plan, structure=(2,))) == [
        7,
        8,
    ]
    with pytest.raises(ValueError, match="the rule of test::nested returned 3 arrays where 2 were expected"):
        flatten((1, 2, [3, 4, 5], 5), plan)


def test_results_have_the_dtype_and_the_size_that_was_promised() -> None:
    plan = Plan(aten.neg.default, ((Operand(0),), {}), (spec(3),), (), (spec(3, dtype=torch.float64),))
    with jax.enable_x64(True):
        (found,) = lower(plan, [jnp.arange(3, dtype=np.float32)], [], None)
        assert found.dtype == np.float64 and found.tolist() == [0, -1, -2]
        with pytest.raises(ValueError, match=r"neg.default returned shape \(3,\), PyTorch expects \(4,\)"):
            lower(replace(plan, outputs=(spec(4),)), [jnp.zeros(3, np.float32)], [], None)


def test_what_cannot_be_lowered_says_so() -> None:
    with pytest.raises(NotImplementedError, match="test::unknown has no lowering rule"):
        apply_rule(Plan("test::unknown", ((), {}), (), (), ()), [], [], None)
    narrow = Plan(aten.roll.default, ((Operand(0), (Number(0),)), {}), (spec(3),), (int,), (spec(3),))
    with pytest.raises(NeedsStaticNumber, match="aten.narrow_copy"):
        plan = replace(narrow, op=aten.narrow_copy.default, arguments=((Operand(0), 0, 0, Number(0)), {}))
        jax.eval_shape(lambda n: apply_rule(plan, [jnp.zeros(3)], [n], None), jax.ShapeDtypeStruct((), np.int32))
