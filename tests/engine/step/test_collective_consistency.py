"""A process expects the next collectives from the earlier ones, however programs divide them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.step import collective_consistency
from torch_xla._engine.step.collective_consistency import _Sequence

NAMES = st.sampled_from("abc")


def started(programs: list[list[str]]) -> tuple[_Sequence, list[bool]]:
    sequence = _Sequence()
    expected = []
    for program in programs:
        expected.append(sequence.expects(program))
        sequence.advance(program)
    return sequence, expected


@given(st.lists(NAMES, max_size=60), st.data())
def test_expectations_do_not_depend_on_where_programs_end(collectives: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(collectives)), max_size=8)))
    parts = [collectives[a:b] for a, b in zip([0, *cuts], [*cuts, len(collectives)], strict=True)]
    alone, _ = started([[each] for each in collectives])
    together, _ = started([part for part in parts if part])
    for following in "abc":
        assert alone.expects([following]) == together.expects([following])
    for end in range(len(collectives) + 1):
        assert alone.digest(end) == together.digest(end)


@given(st.lists(st.lists(NAMES, min_size=1, max_size=6), min_size=1, max_size=3), st.integers(5, 20))
def test_a_step_that_repeats_is_soon_expected(step: list[list[str]], times: int) -> None:
    _, expected = started(step * (times + 16))
    assert all(expected[-len(step) * times // 2 :])


@given(st.lists(NAMES, max_size=30), NAMES, NAMES)
def test_of_two_that_differ_one_is_not_expected(history: list[str], one: str, other: str) -> None:
    sequence, _ = started([[each] for each in history])
    assert one == other or not (sequence.expects([one]) and sequence.expects([other]))
    assert sequence.digest(len(history) + 1, [one]) != sequence.digest(len(history) + 1, [other]) or one == other


def test_a_visit_to_another_program_costs_few_comparisons() -> None:
    sequence, _ = started([["gather"] * 50 + ["scatter"] * 50] * 30)
    _, expected = started(
        [["gather"] * 50 + ["scatter"] * 50] * 30 + ([["evaluate"]] + [["gather"] * 50 + ["scatter"] * 50] * 10) * 4
    )
    assert expected[30:].count(False) <= 8
    assert sequence.expects(["gather"] * 50 + ["scatter"] * 50)


def test_what_is_kept_does_not_grow(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(collective_consistency, "_WINDOW", 64)
    one, _ = started([[str(number % 7)] for number in range(2000)])
    other, _ = started([[str(n % 7) for n in range(first, min(2000, first + 13))] for first in range(0, 2000, 13)])
    assert max(len(one.kept), len(other.kept)) <= 64 * 4
    for end in range(1990, 2001):
        assert one.digest(end) == other.digest(end)


class Watch:
    """A watch without connections."""

    step, line = 0, None

    def propose(self, key: str, value: str) -> str:
        return value

    def next_number(self, key: str) -> int:
        return 1


def test_whom_this_process_was_counted_for_is_forgotten_where_it_has_been(monkeypatch: pytest.MonkeyPatch) -> None:
    watch: Any = Watch()
    program: Any = object()
    monkeypatch.setattr(collective_consistency.heartbeats, "watch", lambda: watch)
    monkeypatch.setattr(
        collective_consistency,
        "parts_of",
        lambda _: (collective_consistency.GroupPart((0, 1), "0,1", ["a", "b"], [0, 1], [None, None]),),
    )
    monkeypatch.setattr(collective_consistency, "_sequences", {})
    monkeypatch.setattr(collective_consistency, "_counted", set())
    for step in range(1, 6):
        collective_consistency._count_arrival(watch, (0, 1), "0,1", 2 * step, "digest")
        collective_consistency._count_arrival(
            watch, (0, 1), "0,1", 2 * step + 2, "digest"
        )  # of another process that is ahead
        assert collective_consistency._counted == {("0,1", 2 * step), ("0,1", 2 * step + 2)}
        collective_consistency.note_start(program, ())
        assert collective_consistency._counted == {("0,1", 2 * step + 2)}


def test_words_for_collectives_without_end_are_forgotten() -> None:
    assert 0 < collective_consistency._short.cache_parameters()["maxsize"] <= 1 << 16
