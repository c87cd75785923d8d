"""Calls that are planned without a trial of their rule: the list is sound."""

import inspect
from typing import Any

import pytest
import torch

from tests.opinfo.check import check_entry
from tests.opinfo.entries import Entry, database
from tests.support.twins import Program, cases, check_refused
from torch_xla._engine.dispatch import call_planning, skip_abstract_eval
from torch_xla._engine.lowering.machinery import registry

NAMES = skip_abstract_eval._ELEMENTWISE | skip_abstract_eval._OF_DIMENSIONS


def rules_of(name: str) -> list[registry.Rule]:
    return [rule for op, rule in registry.all_rules().items() if getattr(op, "__name__", "").split(".")[0] == name]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_has_a_rule_which_refuses_nothing(name: str) -> None:
    rules = rules_of(name)
    assert rules
    for rule in rules:
        if inspect.isfunction(rule.lower):
            assert " raise " not in inspect.getsource(rule.lower.__code__), rule.op


def test_other_calls_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated_on_shapes: list[str] = []
    trial = call_planning.evaluated_on_shapes

    def counted(plan: Any, *rest: Any) -> Any:
        evaluated_on_shapes.append(str(plan.op))
        return trial(plan, *rest)

    monkeypatch.setattr(call_planning, "evaluated_on_shapes", counted)
    x = torch.arange(33 * 35, dtype=torch.float32).reshape(33, 35).to("xla")
    total = (x @ x.T).add_(1).mul(2).sigmoid().sum(0)
    assert evaluated_on_shapes == []
    x.index_add(0, torch.tensor([1], device="xla"), x[:1])
    x.to(torch.int32) + 1
    x.div(2, rounding_mode="floor")
    assert evaluated_on_shapes == [
        "aten.index_add.default",
        "aten._to_copy.default",
        "aten.add.Tensor",
        "aten.div.Tensor_mode",
    ]
    assert total.shape == (33,) and torch.isfinite(total.cpu()).all()


@pytest.mark.parametrize(
    "every", [pytest.param(12, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.exhaustive)]
)
def test_a_trial_tells_nothing_more_and_wrong_calls_are_refused_as_on_the_cpu(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: dict[int, list[Any]] = {}
    meta_kernel_suffices, plan_of = skip_abstract_eval.meta_kernel_suffices, call_planning._plan
    seen: set[str] = set()

    def noted(*given: Any) -> Any:
        plan = plan_of(*given)
        numbers[id(plan)] = given[-1][2]
        return plan

    def both(rule: Any, plan: Any, inferred: Any, writes: bool) -> bool:
        answer = meta_kernel_suffices(rule, plan, inferred, writes)
        if answer:
            seen.add(rule.op._schema.name)
            shapes, _ = call_planning.evaluated_on_shapes(plan, [], numbers[id(plan)])
            given = call_planning._without_unwanted(inferred, shapes)
            assert given.structure == inferred.structure
            whole = call_planning.replace(plan, outputs=inferred.outputs, structure=inferred.structure)
            call_planning._check_results(whole, shapes)
        return answer

    monkeypatch.setattr(call_planning, "meta_kernel_suffices", both)
    monkeypatch.setattr(call_planning, "_plan", noted)
    chosen = [name for name in database() if name.split(".")[-1] in NAMES or name.startswith("_foreach_")]
    failures = []
    for name in chosen[::every]:
        if any(str(each) == "torch.float32" for each in database()[name].dtypes):
            failures += check_entry(Entry(name, "float32"), 4).failures
    assert not failures
    assert len(seen) > 80 // every


def rows(*size: int, d: str) -> torch.Tensor:
    return torch.ones(*size, device=d)


@cases(
    {
        "added to a product": lambda d: torch.addmm(rows(4, 2, 3, d=d), rows(2, 5, d=d), rows(5, 3, d=d)),
        "added to products": lambda d: torch.baddbmm(rows(7, 2, 3, d=d), rows(1, 2, 5, d=d), rows(1, 5, 3, d=d)),
        "dimension of a softmax": lambda d: torch.ops.aten._softmax(rows(2, 3, d=d), 3, False),
        "product": lambda d: torch.mm(rows(2, 3, d=d), rows(2, 3, d=d)),
        "dimension of a sum": lambda d: rows(2, 3, d=d).sum(2),
        "dimension of a mean": lambda d: rows(2, 3, d=d).mean(-3),
        "sizes": lambda d: rows(2, 3, d=d) * rows(2, d=d),
        "lists": lambda d: torch._foreach_add([rows(2, d=d)], [rows(2, d=d), rows(2, d=d)]),
    }
)
def test_what_the_cpu_refuses_is_refused(program: Program) -> None:
    check_refused(program)
