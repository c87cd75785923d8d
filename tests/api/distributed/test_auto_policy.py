"""`distribute_module` finds layouts by `auto_policy`."""

import pytest

from tests.support import parts


@pytest.mark.slow
@pytest.mark.parametrize("name", parts.names("auto_policy"))
def test_modules_that_are_laid_out(name: str) -> None:
    parts.check("auto_policy", name)
