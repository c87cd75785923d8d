"""The table of rules."""

from collections.abc import Iterator

import pytest
import torch

from torch_xla._engine.ir.call_plan import Number
from torch_xla._engine.lowering.machinery import registry
from torch_xla._engine.lowering.machinery.registry import Promotion, Rule

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def rules_of_a_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_rules", dict(registry._rules))
    monkeypatch.setattr(registry, "_later", dict(registry._later))
    yield


def test_a_rule_is_of_exactly_one_overload() -> None:
    rule = registry.rule_of(aten.add.Tensor)
    assert rule is not None and rule.op is aten.add.Tensor and rule.promotion is Promotion.COMMON
    assert registry.rule_of(aten.add) is None and registry.rule_of("aten::add.Tensor") is None
    assert registry.all_rules()[aten.add.Tensor] is rule


def test_a_second_rule_is_refused() -> None:
    @registry.lowers("test::one", "test::two", promotion=Promotion.FLOAT, random=True)
    def one() -> None: ...

    found = registry.rule_of("test::two")
    assert found == Rule("test::two", one, Promotion.FLOAT, True)
    with pytest.raises(ValueError, match="test::one has two rules: .*one.* and .*print"):
        registry.lowers("test::one")(print)
    registry.lowers_named("test::later")(print)
    with pytest.raises(ValueError, match="test::later has two rules"):
        registry.lowers_named("test::later")(print)


def test_operators_that_are_defined_later_find_their_rule() -> None:
    registry.lowers_named("test_registry::twice")(lambda x: x * 2)
    assert "test_registry::twice" in registry.names_to_come()
    library = torch.library.Library("test_registry", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    op = torch.ops.test_registry.twice.default
    rule = registry.rule_of(op)
    assert rule is not None and rule.op is op and rule.lower(3) == 6 and registry.rule_of(op) is rule


def name(number: int) -> str:
    return f"test::made {number}"  # another object each time


def test_a_rule_made_while_the_program_runs_leaves_when_nobody_holds_it() -> None:
    held, operation = (registry.add_rule(Rule(name(n), print, Promotion.NONE, False)) for n in (1, 2))
    by_its_operation = operation.op
    registry.add_rule(Rule(name(3), print, Promotion.NONE, False))
    del operation
    registry.drop_rules(registry._made)
    assert [registry.rule_of(name(n)) is None for n in (1, 2, 3)] == [False, False, True] and by_its_operation
    assert registry.add_rule(Rule(held.op, len, Promotion.NONE, False)) is held  # the first one stays


def test_lists_that_may_be_cut() -> None:
    assert registry.is_separable(aten._foreach_add.List) and not registry.is_separable(aten.cat.default)
    assert not registry.is_separable("test::none")


def test_a_call_whose_rate_is_zero_draws_nothing() -> None:
    rule = Rule("test::dropping", print, Promotion.NONE, True, rate=(1, "p"))
    assert not rule.draws((1,), {}) and not rule.draws((1, 0.0), {}) and not rule.draws((1,), {"p": 0})
    assert rule.draws((1, 0.5), {}) and rule.draws((1,), {"p": 0.5}) and rule.draws((1, Number(0)), {})
    assert Rule("test::drawing", print, Promotion.NONE, True).draws((0, 0), {})
    assert not Rule("test::plain", print, Promotion.NONE, False, rate=(1, "p")).draws((0, 1), {})


def test_what_no_rule_takes_is_left_out_wherever_it_is_written() -> None:
    aten = torch.ops.aten
    assert registry.that_arrive(aten.copy.default, (1, 2, True)) == (1, 2)
    assert registry.that_arrive(aten.copy.default, (1,)) == (1,)
    assert registry.that_arrive(aten.poisson.default, (1, None)) == (1,)
    assert registry.that_arrive(aten.add.Tensor, (1, 2)) == (1, 2)
