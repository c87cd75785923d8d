"""Processes that tests start do not outlive the session."""

from collections.abc import Iterator

import pytest

from tests.support import fleet


@pytest.fixture(scope="session", autouse=True)
def end_of_fleets() -> Iterator[None]:
    with fleet.fleets():
        yield
