"""Distributed tensors of PyTorch on a mesh of four virtual devices."""

import pytest

from tests.support import parts


@pytest.mark.slow
@pytest.mark.parametrize("name", parts.names("distributed_tensors"))
def test_distributed_tensors_on_a_mesh(name: str) -> None:
    parts.check("distributed_tensors", name)
