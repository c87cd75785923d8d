"""A client starts with what XLA and libtpu read once, and the environment is as before afterwards."""

import os
import platform

import pytest

from torch_xla._engine.runtime import cpu_instructions, tpu_chips
from torch_xla._engine.runtime.first_client import client_environment


def test_a_client_starts_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_instructions, "has_client", lambda: False)
    monkeypatch.setattr(cpu_instructions, "_are_common", False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(tpu_chips, "chip_count", lambda: 0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    for name in ("XLA_FLAGS", "TPU_SKIP_MDS_QUERY"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with client_environment():
        assert "xla_cpu_max_isa" in os.environ["XLA_FLAGS"] and os.environ["TPU_SKIP_MDS_QUERY"] == "1"
    assert dict(os.environ) == before
