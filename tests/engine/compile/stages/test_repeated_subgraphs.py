"""Stretches of a sequence in which the same elements come again and again."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.compile.stages.repeated_subgraphs import FEWEST, Repeat, find

words = st.lists(st.sampled_from("abc"), min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("abcdef", []),
        ("abab", []),
        ("ababab", [Repeat(0, 2, 6)]),
        ("xababaz", []),
        ("aaaaaa", [Repeat(0, 1, 6)]),
        ("xabacabacabacy", [Repeat(1, 4, 12)]),
        ("abcabcabcdedededede", [Repeat(0, 3, 9), Repeat(9, 2, 10)]),
    ],
)
def test_repeats_of_words(text: str, expected: list[Repeat]) -> None:
    assert find(text) == expected


def test_only_what_is_worth_it_is_found() -> None:
    assert find("ababababab", spared=8) == [Repeat(0, 2, 10)]
    assert find("ababababab", spared=9) == []


@given(words, words, words, st.integers(4, 9))
def test_what_is_found_repeats_and_a_planted_repeat_is_found(
    before: list[str], word: list[str], after: list[str], times: int
) -> None:
    # Capital letters: what is around the planted repeat is no part of it.
    text = [each.upper() for each in before] + word * times + [each.upper() for each in after]
    found = find(text)
    end = 0
    for repeat in found:
        assert repeat.start >= end and repeat.length >= FEWEST * repeat.period
        end = repeat.end
        assert all(text[at] == text[at + repeat.period] for at in range(repeat.start, end - repeat.period))
    inside = [each for each in found if each.start < len(before) + len(word) * times and each.end > len(before)]
    # Its period may be a part of the word, if the word itself repeats one.
    assert any(len(word) % each.period == 0 and each.length >= len(word) * times for each in inside)


def test_the_layers_of_a_deep_program_are_found_quickly() -> None:
    chance = random.Random(0)
    layer = [chance.randrange(40) for _ in range(700)]
    text = [-1, -2, *layer * 60, -3]
    assert find(text) == [Repeat(2, 700, 42_000)]
