"""An address is given to fsspec, and what is missing is named."""

import importlib
from typing import Any

import pytest

from torch_xla._engine import remote_files


def test_an_address_has_files_and_a_path() -> None:
    files, path = remote_files.files_at("memory://one/run")
    assert path == "/one/run" and files.protocol == "memory"


def test_an_unknown_kind_of_address_and_a_missing_library_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="^'nonsense://run': fsspec knows no store by the name of 'nonsense'$"):
        remote_files.files_at("nonsense://run")

    def missing(name: str) -> Any:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match="^'s3://run' is an address, and what .* not installed: no fsspec.core"):
        remote_files.files_at("s3://run")
