"""A slice of the random functions, in every run of the tests."""

import pytest

import torch_xla

from .compose import run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(8))
def test_a_random_function_does_what_it_does_on_the_cpu(seed: int) -> None:
    ours = run(seed, "xla", lambda function: torch_xla.compile(function, replay=True))
    assert ours == run(seed, "cpu", lambda function: function)
