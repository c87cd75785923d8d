"""Several ordinals in one process."""

import pytest

from tests.support import parts


@pytest.mark.slow
@pytest.mark.parametrize("name", parts.names("four_devices"))
def test_four_devices(name: str) -> None:
    parts.check("four_devices", name)
