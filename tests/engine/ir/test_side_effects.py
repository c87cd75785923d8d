"""The side effects of operations, and the messages of assertions by their numbers."""

from collections import OrderedDict
from collections.abc import Iterator

import pytest

from torch_xla._engine.ir import side_effects
from torch_xla._engine.ir.side_effects import ASSERTION, CALLBACK, CHECK, EffectKind, collective


@pytest.fixture(autouse=True)
def no_messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(side_effects, "_messages", OrderedDict())
    monkeypatch.setattr(side_effects, "_numbers", {})
    yield


def test_what_all_processes_run_and_what_is_looked_at_on_the_host() -> None:
    kinds = [CALLBACK, CHECK, ASSERTION, collective()]
    assert [each.is_collective for each in kinds] == [False, False, False, True]
    assert [each.is_reported for each in kinds] == [False, True, True, False]
    assert {each.kind for each in kinds} == set(EffectKind)


def test_equal_effects_are_equal_and_groups_tell_collectives_apart() -> None:
    assert collective(((0, 1), (2, 3))) == collective(((0, 1), (2, 3)))
    assert len({collective(), collective(((0, 1),)), collective(((1, 0),)), CALLBACK}) == 4


def test_a_message_has_one_number() -> None:
    first, second = side_effects.number_of("a"), side_effects.number_of("b")
    assert first != second
    assert side_effects.number_of("a") == first
    assert [side_effects.message_of(first), side_effects.message_of(second)] == ["a", "b"]


def test_the_message_used_longest_ago_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_effects, "_MOST_MESSAGES", 2)
    first, second = side_effects.number_of("a"), side_effects.number_of("b")
    side_effects.number_of("a")
    third = side_effects.number_of("c")
    assert [side_effects.message_of(first), side_effects.message_of(third)] == ["a", "c"]
    assert "left memory" in side_effects.message_of(second)
    assert len(side_effects._numbers) == len(side_effects._messages) == 2
    # It comes back under a number that no program of earlier uses.
    assert side_effects.number_of("b") not in (first, second, third)
