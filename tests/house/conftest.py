from collections.abc import Iterator

import pytest

from tests.house import source


@pytest.fixture(scope="package", autouse=True)
def parsed_sources() -> Iterator[None]:
    """Forget the parsed sources afterwards: each collection of garbage would search their two million objects."""
    yield
    source.forget()
