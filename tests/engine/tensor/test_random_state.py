"""Random states: a sequence of ints that a seed begins, and keys that depend on the state alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.tensor.random_state import Generator, keys_of

STATES = st.sampled_from([0, 1, 2**63 - 1]) | st.integers(0, 2**63 - 1)


@given(st.integers(-(2**70), 2**70))
@settings(max_examples=50)
def test_any_seed_begins_a_sequence_that_can_be_repeated_and_saved(seed: int) -> None:
    generator = Generator()
    generator.seed(seed)
    assert generator.initial_seed == seed
    states = [generator.draw() for _ in range(20)]
    assert len(set(states)) == 20 and all(0 <= state < 2**63 for state in states)
    generator.seed(seed)
    assert [generator.draw() for _ in range(20)] == states
    generator.state = states[5]
    assert generator.draw() == states[5] and generator.draw() == states[6]


def test_the_first_state_of_small_seeds_is_the_seed() -> None:
    generator = Generator()
    generator.seed(42)
    assert generator.state == 42


@given(st.lists(STATES, min_size=2, max_size=5))
@settings(max_examples=50)
def test_a_key_depends_on_its_state_alone(states: list[int]) -> None:
    together = keys_of(states)
    assert together.shape == (len(states), 4) and together.dtype == np.uint32
    np.testing.assert_array_equal(together, np.concatenate([keys_of([state]) for state in states]))


@pytest.mark.parametrize("first", [0, 2**32 - 50, 2**63 - 100])
def test_neighbouring_states_give_unrelated_keys(first: int) -> None:
    keys = keys_of(list(range(first, first + 100)))
    assert len({key.tobytes() for key in keys}) == 100
    bits = np.unpackbits(keys.view(np.uint8), axis=1)
    flipped = (bits[1:] != bits[:-1]).mean()
    assert 0.47 < flipped < 0.53
