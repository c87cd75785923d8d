"""Layouts that a search finds are as good as layouts by hand."""

import pytest

from tests.support import parts


@pytest.mark.slow
@pytest.mark.parametrize("name", parts.names("layouts"))
def test_layouts_that_are_found(name: str) -> None:
    parts.check("layouts", name)
