"""Files at an address such as "s3://bucket/run", by fsspec, which is optional."""

import importlib
from typing import Any


def files_at(address: str) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path in it.

    Raises `ImportError` where fsspec, or the library of this kind of address, is not installed.
    """
    scheme = address.partition("://")[0]
    try:
        found: tuple[Any, str] = importlib.import_module("fsspec.core").url_to_fs(address)
    except ImportError as error:
        raise ImportError(
            f"{address!r} is an address, and what reads and writes it is not installed: {error}. Install it, or mount "
            "the store as a folder and give its path"
        ) from error
    except ValueError as error:
        raise ValueError(f"{address!r}: fsspec knows no store by the name of {scheme!r}") from error
    return found
