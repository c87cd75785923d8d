"""SPMD over four virtual devices: marks, shards, training in several layouts."""

import pytest

from tests.support import parts


@pytest.mark.parametrize("name", parts.names("meshes"))
def test_one_program_over_a_mesh(name: str) -> None:
    parts.check("meshes", name)


@pytest.mark.slow
@pytest.mark.parametrize("name", parts.names("uneven_shards"))
def test_sizes_that_a_mesh_does_not_divide(name: str) -> None:
    parts.check("uneven_shards", name)


@pytest.mark.parametrize("name", parts.names("manual_sharding"))
def test_devices_compute_on_what_they_have(name: str) -> None:
    parts.check("manual_sharding", name)


@pytest.mark.parametrize("name", parts.names("sharding_specs"))
def test_what_a_sharding_is(name: str) -> None:
    parts.check("sharding_specs", name)
