"""What the tests of recording have in common."""

from collections.abc import Iterator

import pytest

from tests.support.four_behind_one import spread_device
from torch_xla._engine.tensor.device import Device


@pytest.fixture
def device() -> Iterator[Device]:
    """An ordinal behind which four devices stand together."""
    with spread_device() as device:
        yield device
