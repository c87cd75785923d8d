"""What came of a call, as text: for programs that are run with this package and without, and compared."""

import warnings
from collections.abc import Callable
from typing import Any


def outcome(function: Callable[[], Any]) -> tuple[str, list[str]]:
    """What it returned, or what it raised; and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = repr(function())
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
    return result, [str(each.message) for each in caught]
