"""The outcome of a call as text, for programs that are run with and without this package and compared."""

import warnings
from collections.abc import Callable
from typing import Any


def outcome(function: Callable[[], Any]) -> tuple[str, list[str]]:
    """Return the result or the error of a function, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = repr(function())
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
    return result, [str(each.message) for each in caught]
