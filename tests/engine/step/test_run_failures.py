"""A program that fails can be looked at: its HLO is where the settings want it."""

from pathlib import Path

import jax
import pytest
import torch

import torch_xla
from torch_xla._engine.errors import ExecutionError


def failing(*_: object, **__: object) -> None:
    raise jax.errors.JaxRuntimeError("INTERNAL: the compiler is out of order")


@pytest.fixture(autouse=True)
def a_new_step() -> None:
    torch_xla.sync(wait=True)


def message_of(step: torch.Tensor) -> str:
    with pytest.raises(ExecutionError) as error:
        torch_xla.sync()
    return str(error.value)


def test_a_program_that_cannot_be_compiled_is_named_with_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(41).to("xla").cos()
    with monkeypatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", failing)
        text = message_of(x)
    assert text.startswith("The device failed in the compilation of step ")
    assert "INTERNAL: the compiler is out of order" in text
    assert f"{__file__}:" in text and "HLO" not in text
    torch_xla.sync()
    assert x[0].item() == pytest.approx(0.5403023)


def test_the_hlo_is_saved_where_the_settings_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "failed.hlo"
    monkeypatch.setenv("XLA_SAVE_HLO_FILE", str(file))
    x = torch.ones(43).to("xla").cos()
    with monkeypatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", failing)
        text = message_of(x)
    assert text.endswith(f"\nIts HLO is in {file}.")
    hlo = file.read_text()
    assert hlo.startswith("HloModule ") and "f32[43]" in hlo and " cosine(" in hlo


@pytest.mark.parametrize("fails", ["compilation", "execution"])
def test_the_hlo_is_in_the_error_where_the_settings_say(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_DUMP_HLO_GRAPH", "1")
    x = torch.ones(47).to("xla").cos()
    with monkeypatch.context() as patch:
        if fails == "compilation":
            patch.setattr(jax.stages.Lowered, "compile", failing)
        else:
            patch.setattr("torch_xla._engine.compile.program.Program.start", failing)
        text = message_of(x)
    assert "\nIts HLO:\nHloModule " in text and "f32[47]" in text and " cosine(" in text


def test_an_error_that_arrives_late_shows_the_hlo_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_DUMP_HLO_GRAPH", "1")
    x = torch.ones(53).to("xla").cos()
    torch_xla.sync()
    with monkeypatch.context() as patch:
        patch.setattr(type(x.untyped_storage().value.buffer), "block_until_ready", failing)
        with pytest.raises(
            ExecutionError, match=r"(?s)The device failed in step \d+: .*HloModule .*f32\[53\].* cosine"
        ):
            torch_xla.sync(wait=True)
