"""The user's options for the compiler: checked, replaced, undone, and named exactly."""

from collections.abc import Iterator
from typing import Any

import pytest

from torch_xla._engine import compiler_options


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    undo = compiler_options.choose(None)
    yield
    undo()


def test_options_take_the_place_of_those_before_until_they_are_undone() -> None:
    compiler_options.choose({"xla_a": 1})
    undo = compiler_options.choose({"--xla_b": True, "xla_c": "on"})
    assert compiler_options.chosen() == {"xla_b": True, "xla_c": "on"}
    undo()
    assert compiler_options.chosen() == {"xla_a": 1}
    compiler_options.choose(None)
    assert not compiler_options.chosen() and compiler_options.text == ""


@pytest.mark.parametrize("options", [{1: True}, {"xla_a": None}, {"xla_a": 1, "xla_b": [1]}], ids=range(3))
def test_what_is_no_option_is_refused_and_changes_nothing(options: Any) -> None:
    compiler_options.choose({"xla_a": 1})
    with pytest.raises(TypeError, match="^custom compile options are names of XLA's flags, .* got "):
        compiler_options.choose(options)
    assert compiler_options.chosen() == {"xla_a": 1}


@pytest.mark.parametrize(
    ("some", "others", "same"),
    [
        ({"xla_a": 1, "xla_b": 2}, {"--xla_b": 2, "--xla_a": 1}, True),
        ({"xla_a": 1}, {"xla_a": True}, False),
        ({"xla_a": "1, xla_b=2"}, {"xla_a": "1", "xla_b": 2}, False),
        ({"xla_a": "1"}, {"xla_a": 1}, False),
    ],
    ids=["order", "type", "separators", "text"],
)
def test_programs_are_found_by_what_was_set_and_not_by_how(some: Any, others: Any, same: bool) -> None:
    compiler_options.choose(some)
    text = compiler_options.text
    compiler_options.choose(others)
    assert (compiler_options.text == text) is same
