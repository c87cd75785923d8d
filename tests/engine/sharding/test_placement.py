"""Values that are divided among the devices behind one ordinal."""

import pytest

from tests.support import parts


@pytest.mark.slow
@pytest.mark.parametrize("name", parts.names("spread"))
def test_values_are_divided(name: str) -> None:
    parts.check("spread", name)
