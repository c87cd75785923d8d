"""Recorded operations are shown in other languages, and nothing runs for that."""

import pytest
import torch

import torch_xla
from torch_xla._engine.compat.names import jax as private
from torch_xla._engine.metrics import counters
from torch_xla._engine.step import pending_text
from torch_xla._engine.step.pending_graph import is_pending


def recorded() -> torch.Tensor:
    x = torch.arange(6.0).view(2, 3).to("xla")
    return (x @ x.mT).relu() + 0.5


def test_one_graph_in_every_language() -> None:
    y = recorded()
    listing = pending_text.ir_text([y])
    assert "aten::relu" in listing and "f32[2,2]" in listing
    assert pending_text.ir_dot([y]).startswith("digraph") and "relu" in pending_text.ir_dot([y])
    stablehlo, hlo = pending_text.stablehlo_text([y]), pending_text.hlo_text([y])
    assert "stablehlo.dot_general" in stablehlo and "-> (tensor<2x2xf32>" in stablehlo
    assert "ENTRY" in hlo and "f32[2,2]" in hlo and "dot(" in hlo
    assert pending_text.stablehlo_bytecode([y]).startswith(b"ML\xefR")
    assert private.stablehlo_of(pending_text.hlo_bytes([y])).startswith(b"ML\xefR")
    assert is_pending(y) and not counters.value_of("UncachedCompile")


def test_without_tensors_all_that_somebody_holds_is_shown() -> None:
    torch_xla.sync()
    first, second = recorded(), torch.ones(5, device="xla").cumsum(0)
    text = pending_text.ir_text([])
    assert "aten::relu" in text and "aten::cumsum" in text
    del second
    assert "aten::cumsum" not in pending_text.ir_text([])
    assert first.sum().item() > 0


def test_lines_are_told_if_somebody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    y = recorded()
    assert not pending_text.shows_lines() and "test_pending_text.py" not in pending_text.ir_text([y])
    pending_text.show_lines(True)
    try:
        assert pending_text.shows_lines() and "test_pending_text.py" in pending_text.ir_text([y])
    finally:
        pending_text.show_lines(False)
    monkeypatch.setenv("XLA_IR_DEBUG", "1")
    assert pending_text.shows_lines() and "test_pending_text.py" in pending_text.ir_text([y])


def test_a_tensor_is_described_with_what_computes_it() -> None:
    y = recorded()[1:]
    text = pending_text.describe(y)
    for row in ("Device: xla:0", "Size: [1, 2], stride [2, 1], offset 2", "Dtype: torch.float32", "State: pending"):
        assert f"{row}\n" in text
    assert "aten::relu" in text
    y.cpu()
    known = pending_text.describe(y)
    assert "aten::relu" not in pending_text.describe(recorded().cpu().to("xla")) and "Size: [1, 2]" in known
    assert "State: empty" in pending_text.describe(torch.empty(3, device="xla"))


def test_the_dtype_has_the_name_that_xla_gives_it() -> None:
    assert pending_text.element_type(torch.ones(1, dtype=torch.bfloat16, device="xla")) == "bf16"
