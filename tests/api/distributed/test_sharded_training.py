"""Training over four virtual devices."""

import pytest

from tests.support import parts


@pytest.mark.slow
@pytest.mark.parametrize("name", parts.names("sharded_training"))
def test_training_over_a_mesh(name: str) -> None:
    parts.check("sharded_training", name)


@pytest.mark.slow
@pytest.mark.parametrize("name", parts.names("sharded_memory"))
def test_memory_of_training_over_a_mesh(name: str) -> None:
    parts.check("sharded_memory", name)
