"""Invalid values of an operator: found on the device, reported in a vector, described in words."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_xla._engine.ir.call_plan import Number, Operand, Plan
from torch_xla._engine.ir.side_effects import CHECK
from torch_xla._engine.ir.value_spec import contiguous_stride, spec_of
from torch_xla._engine.lowering.machinery import device_value_checks, registry
from torch_xla._engine.lowering.machinery.device_value_checks import (
    Condition,
    complaint,
    outside,
    report_of,
    report_plan,
)
from torch_xla._engine.lowering.machinery.registry import rule_of

aten = torch.ops.aten


def spec(*size: int, dtype: torch.dtype = torch.float32):  # type: ignore[no-untyped-def]
    return spec_of(size, contiguous_stride(size), dtype)


GATHER = Plan(
    aten.gather.default,
    ((Operand(0), 1, Operand(1)), {}),
    (spec(2, 3), spec(2, 2, dtype=torch.int64)),
    (),
    (spec(2, 2),),
)


def reported(plan: Plan, *arrays: object) -> np.ndarray:
    found = report_plan(plan)
    assert found is not None
    rule = rule_of(found.op)
    assert rule is not None
    from_operands = [arrays[each.index] if isinstance(each, Operand) else each for each in plan.arguments[0]]
    with jax.enable_x64(True):
        return np.asarray(rule.lower(*from_operands, **plan.arguments[1]))


def told(plan: Plan, *arrays: object, line: str | None = None) -> Exception | None:
    found = report_plan(plan)
    assert found is not None
    return complaint(found, reported(plan, *arrays), line)


def test_good_values_are_no_complaint_and_bad_ones_are_told_with_value_and_place() -> None:
    table = jnp.ones((2, 3))
    assert told(GATHER, table, jnp.array([[0, 2], [1, 1]])) is None
    error = told(GATHER, table, jnp.array([[0, 2], [1, 7]]), line="train.py:3 in step")
    assert type(error) is RuntimeError
    assert str(error) == "gather at train.py:3 in step: `index` must be from 0 to 2. It is 7 at [1, 1]."
    assert "It is -1 at [0, 0]" in str(told(GATHER, table, jnp.array([[-1, 9], [1, 7]])))  # the first


def test_what_is_raised_is_what_pytorch_raises() -> None:
    table, index = torch.ones(2, 3), torch.tensor([[0, 2], [1, 7]])
    with pytest.raises(RuntimeError):
        table.gather(1, index)
    embedding = Plan(
        aten.embedding.default,
        ((Operand(0), Operand(1)), {}),
        (spec(2, 3), spec(1, dtype=torch.int64)),
        (),
        (spec(1, 3),),
    )
    with pytest.raises(IndexError) as caught:
        torch.embedding(table, index[1])
    assert type(told(embedding, jnp.ones((2, 3)), jnp.array([5]))) is caught.type


def test_floats_are_told_as_numbers() -> None:
    plan = Plan(aten.bernoulli.default, ((Operand(0),), {}), (spec(2, 2),), (), (spec(2, 2),))
    assert "`input` must be from 0 to 1. It is 1.5 at [1, 0]" in str(told(plan, jnp.array([[0.0, 1.0], [1.5, 2.0]])))
    assert "It is nan at [0, 1]" in str(told(plan, jnp.array([[0.0, np.nan], [1.5, 2.0]])))


def test_the_first_of_several_findings_is_reported() -> None:
    def findings(first: list[bool], second: list[bool]) -> Iterator[Condition]:
        yield Condition("none", jnp.zeros((0,), bool), jnp.zeros(0), "has no elements")
        yield Condition("a", jnp.array(first), jnp.array([10, 20]), "")
        yield Condition("b", jnp.array([second]), jnp.array([[30, 40]]), "")

    with jax.enable_x64(True):
        reports = [
            report_of(findings(*bad)).tolist()[:4]
            for bad in (([False, False], [False, False]), ([False, True], [True, True]), ([False] * 2, [False, True]))
        ]
    assert reports == [[0, 0, 0, 0], [2, 20, 1, 0], [3, 40, 0, 1]]


def test_a_check_runs_though_nobody_reads_it() -> None:
    found = report_plan(GATHER)
    assert found is not None and found.effect is CHECK and found.outputs == (device_value_checks.REPORT,)
    assert report_plan(Plan(aten.sin.default, ((Operand(0),), {}), (spec(2),), (), (spec(2),))) is None
    divided = Plan(
        aten.remainder.Scalar,
        ((Operand(0), Number(0)), {}),
        (spec(2, dtype=torch.int64),),
        (int,),
        (spec(2, dtype=torch.int64),),
    )
    assert report_plan(divided).numbers == (int,)  # type: ignore[union-attr]


def test_checks_stay_when_rules_that_nobody_holds_leave() -> None:
    registry.drop_rules(registry._made)
    names = {check.name for check in device_value_checks.all_checks().values()}
    assert len(names) > 30 and all(rule_of(name) is not None for name in names)
    assert "It is 7" in str(told(GATHER, jnp.ones((2, 3)), jnp.array([[0, 2], [1, 7]])))


def test_indices_from_the_end() -> None:
    index = jnp.array([-4, -3, -1, 0, 2, 3])
    assert outside(index, 3).tolist() == [True, True, True, False, False, True]
    assert outside(index, 3, from_end=True).tolist() == [True, False, False, False, False, True]
    assert outside(index, 0).all()
