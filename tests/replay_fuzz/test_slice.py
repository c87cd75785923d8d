"""A slice of the random functions, in every run of the tests."""

import pytest

import torch_xla

from .compose import is_long, run
from .ways import are_rounded


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(7))
def test_a_random_function_does_what_it_does_on_the_cpu(seed: int) -> None:
    ours = run(seed, "xla", lambda function: torch_xla.compile(function, replay=True))
    assert ours == run(seed, "cpu", lambda function: function)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_random_function_that_is_packed_does_too() -> None:
    assert is_long(7)
    test_a_random_function_does_what_it_does_on_the_cpu(7)


def test_rounding_is_told_from_what_is_wrong() -> None:
    log = [("tensor", [-480.6974792480469, 1.0]), {"a": 3}]
    assert are_rounded(log, [("tensor", [-480.69744873046875, 1.0]), {"a": 3}])
    for other in ([("tensor", [-480.69, 1.0]), {"a": 3}], [("tensor", [-480.6974792480469]), {"a": 3}], log[:1]):
        assert not are_rounded(log, other)
    assert not are_rounded(log, [("tensor", [-480.6974792480469, 1.0]), {"a": 4}])
