"""Shardings are compared by what they say."""

import pytest

from torch_xla._engine.ir.sharding import ANY, MANUAL, Sharding, fitting, sharding_by


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ((), None),
        (((), ()), None),
        (((0,),), Sharding(((0,),))),
        (((0,), (), ()), Sharding(((0,),))),
        (((), (2, 1), ()), Sharding(((), (2, 1)))),
    ],
)
def test_what_is_not_divided_at_the_end_is_not_said(
    dims: tuple[tuple[int, ...], ...], expected: Sharding | None
) -> None:
    assert sharding_by(dims) == expected


def test_the_order_of_axes_counts() -> None:
    assert len({sharding_by(dims) for dims in [((0, 1),), ((1, 0),), ((0,), (1,)), ((), (0, 1)), ((0, 1), ())]}) == 4
    assert MANUAL not in (sharding_by(()), Sharding(()), ANY)


def test_shardings_read_in_graphs() -> None:
    assert str(Sharding(((), (2, 1)))) == "[-, 2.1]"
    assert str(MANUAL) == "[manual]"
    assert repr(ANY) == "any"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((4, 6), ((0,), (1,))),
        ((1, 6), ((), (1,))),
        ((4, 1), ((0,),)),
        ((1, 1), None),
        ((0, 6), None),
        ((3, 2, 1), ((0,), (1,))),
    ],
)
def test_one_element_is_not_divided(size: tuple[int, ...], expected: tuple[tuple[int, ...], ...] | None) -> None:
    given = Sharding(((0,), (1,)))
    assert fitting(given, size) == (None if expected is None else Sharding(expected))
    assert fitting(None, size) is None and fitting(MANUAL, size) is MANUAL
