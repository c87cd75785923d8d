"""What is recorded is shown in the languages of others, and nothing runs for it."""

import pytest
import torch

import torch_xla
from torch_xla._engine.metrics import counters
from torch_xla._engine.private import jax as private
from torch_xla._engine.record import export
from torch_xla._engine.record.pending import is_pending


def recorded() -> torch.Tensor:
    x = torch.arange(6.0).view(2, 3).to("xla")
    return (x @ x.mT).relu() + 0.5


def test_one_graph_in_every_language() -> None:
    y = recorded()
    listing = export.ir_text([y])
    assert "aten::relu" in listing and "f32[2,2]" in listing
    assert export.ir_dot([y]).startswith("digraph") and "relu" in export.ir_dot([y])
    stablehlo, hlo = export.stablehlo_text([y]), export.hlo_text([y])
    assert "stablehlo.dot_general" in stablehlo and "-> (tensor<2x2xf32>" in stablehlo
    assert "ENTRY" in hlo and "f32[2,2]" in hlo and "dot(" in hlo
    assert export.stablehlo_bytecode([y]).startswith(b"ML\xefR")
    assert private.stablehlo_of(export.hlo_bytes([y])).startswith(b"ML\xefR")
    assert is_pending(y) and not counters.value_of("UncachedCompile")


def test_without_tensors_all_that_somebody_holds_is_shown() -> None:
    torch_xla.sync()
    first, second = recorded(), torch.ones(5, device="xla").cumsum(0)
    text = export.ir_text([])
    assert "aten::relu" in text and "aten::cumsum" in text
    del second
    assert "aten::cumsum" not in export.ir_text([])
    assert first.sum().item() > 0


def test_lines_are_told_if_somebody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    y = recorded()
    assert not export.shows_lines() and "test_export.py" not in export.ir_text([y])
    export.show_lines(True)
    try:
        assert export.shows_lines() and "test_export.py" in export.ir_text([y])
    finally:
        export.show_lines(False)
    monkeypatch.setenv("XLA_IR_DEBUG", "1")
    assert export.shows_lines() and "test_export.py" in export.ir_text([y])


def test_a_tensor_is_described_with_what_computes_it() -> None:
    y = recorded()[1:]
    text = export.describe(y)
    for row in ("Device: xla:0", "Size: [1, 2], stride [2, 1], offset 2", "Dtype: torch.float32", "State: pending"):
        assert f"{row}\n" in text
    assert "aten::relu" in text
    y.cpu()
    known = export.describe(y)
    assert "aten::relu" not in export.describe(recorded().cpu().to("xla")) and "Size: [1, 2]" in known
    assert "State: empty" in export.describe(torch.empty(3, device="xla"))


def test_the_dtype_has_the_name_that_xla_gives_it() -> None:
    assert export.element_type(torch.ones(1, dtype=torch.bfloat16, device="xla")) == "bf16"
