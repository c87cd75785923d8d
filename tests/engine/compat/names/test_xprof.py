"""The client to profiler servers is xprof's, and is asked for when a profile is, not before."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from torch_xla._engine.compat.names import xprof


def test_without_it_an_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, xprof._MODULE, None)
    with pytest.raises(ImportError):
        xprof.request_profile("localhost:1", "folder", 10, 1, {})


def test_it_is_told_where_how_long_and_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    for name in ("xprof", "xprof.convert"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, xprof._MODULE, SimpleNamespace(trace=lambda *args: told.append(args)))
    xprof.request_profile("localhost:9012", "folder", 500, 3, {"host_tracer_level": 2})
    assert told == [("localhost:9012", "folder", "", False, 500, 3, {"host_tracer_level": 2})]
