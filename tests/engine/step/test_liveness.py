"""References to a value are counted independently of the caller, and decide what a program may take."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.buffers import Buffer
from torch_xla._engine.ir.call_plan import Plan
from torch_xla._engine.ir.graph import Cut, Graph, Operation
from torch_xla._engine.ir.tape import Value
from torch_xla._engine.ir.value_spec import contiguous_stride, spec_of
from torch_xla._engine.step import donation, liveness


def value(size: tuple[int, ...] = (2,)) -> Value:
    return Value(spec_of(size, contiguous_stride(size), torch.float32), None, None, -1)


class Storage:
    def __init__(self, held: Value) -> None:
        self.value = held


@given(st.lists(st.integers(0, 3), max_size=6))
def test_held_tells_each_that_somebody_else_holds(holders: list[int]) -> None:
    values = [value() for _ in holders]
    kept = [[values[index]] * count for index, count in enumerate(holders)]
    assert list(liveness.held(values)) == [count > 0 for count in holders]
    kept.clear()
    assert not any(liveness.held(values))


@given(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 2))
def test_values_are_owned_while_no_more_than_a_storage_and_who_asks_hold_them(others: list[int], asking: int) -> None:
    storages = [Storage(value()) for _ in others]
    kept = [[storages[index].value] * count for index, count in enumerate(others)]
    lists = [[storage.value for storage in storages] for _ in range(asking)]
    values = [storage.value for storage in storages]
    assert liveness.are_owned(values, besides=asking) == all(not count for count in others)
    assert liveness.are_owned(values, besides=asking + 2)
    del kept, lists


def test_what_somebody_outside_shares_is_not_taken() -> None:
    storage = Storage(value())
    assert liveness.may_be_taken([storage.value])
    assert liveness.taken([storage.value]) is not None
    storage.value.shared = True
    assert not liveness.may_be_taken([storage.value])
    assert liveness.taken([storage.value]) is None
    assert liveness.are_owned([storage.value])


def test_what_is_taken_is_refused_as_soon_as_another_holds_it() -> None:
    storage, operand = Storage(value()), value()
    found = liveness.taken(given_away := [storage.value], known := [storage.value, (operand, "view")])
    assert found is not None
    assert found.are_free(besides=1) and not found.are_free()  # the storage is not among the known
    with pytest.raises(liveness.StillHeld):
        list(found.refusal())
    another, storage.value = storage.value, operand
    assert not found.are_free()
    another = operand
    assert found.are_free() and list(found.refusal()) == [None]
    del given_away, known, another


def test_a_donor_counts_as_held_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donation.Donor, "exists", False)
    values = [value(), value(), value()]
    kept = values[:2]
    values[0].buffer = Buffer()
    assert liveness.held_at_end(values) == (bytes([1, 1, 0]), ())
    assert donation.mark(values[0], True)
    assert liveness.held_at_end(values) == (bytes([0, 1, 0]), (0,))
    assert list(liveness.held(values)) == [1, 1, 0]
    del kept


SIZES = st.sampled_from([(2,), (3,), (2, 2)])


@given(st.lists(st.tuples(SIZES, st.booleans(), st.booleans()), max_size=6), st.lists(SIZES, max_size=6), st.data())
def test_as_much_is_donated_as_results_of_that_form_can_take(
    inputs: list[tuple[tuple[int, ...], bool, bool]], outputs: list[tuple[int, ...]], data: Any
) -> None:
    graph = graph_of([size for size, _, _ in inputs], outputs)
    live = bytes([is_live for _, is_live, _ in inputs])
    shared = [slot for slot, (_, _, is_shared) in enumerate(inputs) if is_shared]
    follows = data.draw(st.sets(st.integers(0, len(inputs) - 1), max_size=3)) if inputs else set()
    part = Cut(graph, tuple(range(len(inputs))), graph.outputs, (), (), ())
    free = [index for index, (_, is_live, is_shared) in enumerate(inputs) if not is_live and not is_shared]
    found = donation.donated(part, live, shared, dict.fromkeys(follows, 0), is_spread=False)
    assert set(found) <= set(free) and list(found) == sorted(found)
    room, wanting = Counter(outputs), Counter(inputs[index][0] for index in free)
    assert Counter(inputs[index][0] for index in found) == wanting & room
    for index in set(free) - set(found):  # values that are followed by a result come first
        same = [other for other in found if inputs[other][0] == inputs[index][0]]
        assert index not in follows or all(other in follows for other in same)
    spread = donation.donated(part, live, shared, dict.fromkeys(follows, 0), is_spread=True)
    assert set(spread) <= follows & set(free)


def graph_of(inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]]) -> Graph:
    """A graph whose results follow from nothing."""
    plans = [Plan(torch.ops.aten.zeros.default, ((list(size),), {}), (), (), (value(size).spec,)) for size in outputs]
    operations = [Operation(plan, (), 0, -1, len(inputs) + nth, -1) for nth, plan in enumerate(plans)]
    slots = tuple(operation.first_output for operation in operations)
    return Graph(tuple(value(size).spec for size in inputs), tuple(operations), slots)
