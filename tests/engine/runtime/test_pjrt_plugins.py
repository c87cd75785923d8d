"""PJRT plugins that come as objects are made known to JAX under a name, by the program or by their package."""

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torch_xla._engine.runtime import pjrt_plugins


class Library:
    def __init__(self, path: str) -> None:
        self.path = path

    def library_path(self) -> str:
        return self.path

    def client_create_options(self) -> dict[str, Any]:
        return {"fast": True}


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the registrations with JAX, which this process must not keep."""
    found: list[Any] = []
    monkeypatch.setattr(pjrt_plugins, "_registered", {})
    monkeypatch.setattr(pjrt_plugins.private, "add_plugin", lambda *args: found.append(args))
    monkeypatch.setattr(pjrt_plugins.private, "add_platform", lambda *args: found.append(args))
    return found


def test_a_library_is_registered_by_its_path(told: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "pjrt.so"
    file.touch()
    plugin = Library(str(file))
    pjrt_plugins.register("Example", plugin)
    ((name, library, options),) = told
    assert (name, library, options()) == ("example", str(file), {"fast": True})
    assert (
        pjrt_plugins.is_known("EXAMPLE")
        and pjrt_plugins.is_known("example")
        and pjrt_plugins.plugin_of("example") is plugin
    )


def test_one_that_makes_its_client_needs_no_library(told: list[Any]) -> None:
    plugin = SimpleNamespace(make_client=lambda: "client")
    pjrt_plugins.register("OWN", plugin)
    assert told == [("own", plugin.make_client)]


@pytest.mark.parametrize("path", ["/no/such/file.so", ""])
def test_a_library_that_is_not_there_is_refused(path: str, told: list[Any]) -> None:
    with pytest.raises(
        FileNotFoundError, match=rf"^the PJRT plugin of X is to be at '{path}', .*Library.library_path\(\)"
    ):
        pjrt_plugins.register("X", Library(path))
    assert not told and not pjrt_plugins.is_known("X")


def test_packages_offer_theirs_and_are_asked_once(monkeypatch: pytest.MonkeyPatch, told: list[Any]) -> None:
    made = SimpleNamespace(make_client=None.__class__)
    entry = SimpleNamespace(name="Offered", load=lambda: lambda: made)
    asked: list[str] = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: asked.append(group) or [entry])
    assert pjrt_plugins.register_installed() == ["Offered"] and pjrt_plugins.register_installed() == []
    assert asked == ["torch_xla.plugins"] * 2 and len(told) == 1


def test_a_name_that_nobody_has_registered_is_refused_with_those_that_are() -> None:
    with pytest.raises(KeyError, match="no plugin is registered for Y; there are none"):
        pjrt_plugins.plugin_of("Y")
    pjrt_plugins.register("Z", SimpleNamespace(make_client=int))
    with pytest.raises(KeyError, match=r"no plugin is registered for Y; there are \['Z'\]"):
        pjrt_plugins.plugin_of("Y")
