"""One ordinal represents all devices: by a setting, by the program, or within a block."""

import pytest

from torch_xla._engine.processes import spmd_mode


def test_it_is_off_until_somebody_says_so() -> None:
    assert not spmd_mode.is_on() and not spmd_mode.is_automatic()
    spmd_mode.turn_on()
    assert spmd_mode.is_on() and not spmd_mode.is_automatic()


@pytest.mark.parametrize(("setting", "automatic"), [("XLA_USE_SPMD", False), ("XLA_AUTO_SPMD", True)])
def test_settings_turn_it_on(setting: str, automatic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting, "1")
    assert spmd_mode.is_on() and spmd_mode.is_automatic() is automatic


def test_a_block_leaves_it_as_it_was() -> None:
    with pytest.raises(KeyError), spmd_mode.turned_on():
        assert spmd_mode.is_on()
        with spmd_mode.turned_on():
            pass
        assert spmd_mode.is_on()
        raise KeyError
    assert not spmd_mode.is_on()


def test_layouts_are_looked_for_from_when_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmd_mode, "_is_automatic", False)
    spmd_mode.turn_on_automatic()
    assert spmd_mode.is_automatic() and not spmd_mode.is_on()
