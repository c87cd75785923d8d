"""A program as text in the languages of the compiler."""

from pathlib import Path

import pytest
import torch

import torch_xla  # noqa: F401
from torch_xla._engine.compile.program_text import hlo, stablehlo
from torch_xla._engine.step import pending_graph


@pytest.mark.parametrize("debugs", [False, True])
def test_the_text_tells_lines_where_they_are_asked_for(debugs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if debugs:
        monkeypatch.setenv("XLA_HLO_DEBUG", "1")
    lowered = pending_graph.graph_of([torch.ones(3).to("xla").sinh()]).lowered()
    for text, sign in ((stablehlo(lowered), "chlo.sinh"), (hlo(lowered), "HloModule")):
        assert sign in text or "stablehlo.exponential" in text
        assert (Path(__file__).name in text) == debugs
    assert "stablehlo" not in hlo(lowered) and "ENTRY" in hlo(lowered)
