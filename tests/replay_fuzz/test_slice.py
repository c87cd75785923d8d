"""A slice of the random functions, in every run of the tests."""

import pytest

import torch_xla

from .compose import is_long, run


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
