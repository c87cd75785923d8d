"""A module of another library is changed when it is imported, before or after the change is asked for."""

import importlib
import sys
from pathlib import Path

import pytest

from torch_xla._engine.compat import import_hooks


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A library with a number in it."""
    (tmp_path / "library_with_a_number.py").write_text("number = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(import_hooks, "_changes", {})
    monkeypatch.delitem(sys.modules, "library_with_a_number", raising=False)
    return "library_with_a_number"


def change(module: object) -> None:
    module.number += 1  # type: ignore[attr-defined]


def test_a_module_that_is_imported_later_is_changed_each_time(name: str) -> None:
    import_hooks.when_imported(name, change)
    assert importlib.import_module(name).number == 2 and import_hooks._finder in sys.meta_path
    del sys.modules[name]
    assert importlib.import_module(name).number == 2


def test_a_module_that_is_there_is_changed_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if each is not import_hooks._finder])
    module = importlib.import_module(name)
    assert module.number == 1
    import_hooks.when_imported(name, change)
    assert module.number == 2 and sys.meta_path.count(import_hooks._finder) == 1
    import_hooks.when_imported(name, change)
    assert module.number == 3 and sys.meta_path.count(import_hooks._finder) == 1


def test_a_module_that_is_missing_is_missing(name: str) -> None:
    import_hooks.when_imported("no_such_library", change)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        importlib.import_module("no_such_library")
