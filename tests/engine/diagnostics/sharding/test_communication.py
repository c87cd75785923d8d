"""The communication of programs on several devices."""

import pytest

from tests.support import parts


@pytest.mark.slow
@pytest.mark.parametrize("name", parts.names("traffic"))
def test_what_is_sent(name: str) -> None:
    parts.check("traffic", name)
