"""SPMD over four virtual devices: marks, shards, training in several layouts."""

import pytest

from tests.support import parts


@pytest.mark.parametrize("name", parts.names("meshes"))
def test_one_program_over_a_mesh(name: str) -> None:
    parts.check("meshes", name)
