"""Equal calls share one plan; calls that are not the same do not."""

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from torch_xla._engine.caching import interning as tables
from torch_xla._engine.ir.call_plan import Number, Operand, Plan, interned
from torch_xla._engine.ir.side_effects import CALLBACK, collective
from torch_xla._engine.ir.value_spec import spec_of

ROW, COLUMN = spec_of((1, 3), (3, 1), None), spec_of((3, 1), (1, 1), None)


def plan(*args: Any, **kwargs: Any) -> Plan:
    return Plan("op of test_call_plan", ((Operand(0), *args), kwargs), (ROW,), (), (ROW,))


@pytest.mark.parametrize(
    "args",
    [
        (),
        (1,),
        (1.0,),
        (True,),
        (0.0,),
        (-0.0,),
        (0j,),
        (-0j,),
        (None,),
        ("1",),
        ((1, 2.0),),
        (Number(0),),
        (float("nan"),),
    ],
    ids=repr,
)
def test_equal_calls_are_one_plan(args: tuple[Any, ...]) -> None:
    first = interned(plan(*args, scale=args))
    assert interned(plan(*args, scale=args)) is first


def test_arguments_that_are_equal_but_not_the_same_tell_plans_apart() -> None:
    for others in ([1, 1.0, True, 1 + 0j], [0.0, -0.0], [0j, -0j, complex(-0.0, 0.0)], [(1, 2), (1.0, 2), (1, (2,))]):
        assert len({id(each) for each in [interned(plan(other)) for other in others]}) == len(others)
        assert len({id(each) for each in [interned(plan(scale=other)) for other in others]}) == len(others)
        assert len({id(each) for each in [interned(plan((other,))) for other in others]}) == len(others)


def test_each_field_tells_plans_apart() -> None:
    plain = plan()
    changes: list[dict[str, Any]] = [
        {"op": "another op of test_call_plan"},
        {"arguments": ((Operand(0),), {"scale": 1})},
        {"operands": (COLUMN,)},
        {"numbers": (float,)},
        {"outputs": (COLUMN,)},
        {"outputs": (ROW, ROW)},
        {"structure": (1,)},
        {"compute_dtype": "float32"},
        {"draws": 1},
        {"replaces": (0,)},
        {"effect": CALLBACK},
        {"effect": collective()},
        {"effect": collective(((0, 1),))},
    ]
    found = [interned(plain), *(interned(replace(plain, **change)) for change in changes)]
    assert len(set(found)) == len(changes) + 1
    assert interned(replace(plain)) is found[0]


def test_plans_are_compared_by_identity() -> None:
    assert plan() != plan() and len({plan(), plan()}) == 2
    assert repr(plan()) == "<plan of op of test_call_plan>"


def test_a_plan_that_nobody_holds_leaves() -> None:
    held, left = interned(plan("held")), weakref.ref(interned(plan("left")))
    tables.drop_unused()
    gc.collect()
    assert left() is None
    assert interned(plan("held")) is held
