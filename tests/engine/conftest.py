"""Fixtures for the tests of recording."""

from collections.abc import Iterator

import pytest

from tests.support.four_behind_one import spread_device
from torch_xla._engine.tensor.device import Device


@pytest.fixture
def device() -> Iterator[Device]:
    """Yield a device whose ordinal represents four devices."""
    with spread_device() as device:
        yield device
