"""Whether all devices stand behind one ordinal: said by a setting, by the program, or for a block."""

import pytest

from torch_xla._engine.client import virtual


def test_it_is_off_until_somebody_says_so() -> None:
    assert not virtual.is_on() and not virtual.is_automatic()
    virtual.turn_on()
    assert virtual.is_on() and not virtual.is_automatic()


@pytest.mark.parametrize(("setting", "automatic"), [("XLA_USE_SPMD", False), ("XLA_AUTO_SPMD", True)])
def test_settings_turn_it_on(setting: str, automatic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting, "1")
    assert virtual.is_on() and virtual.is_automatic() is automatic


def test_a_block_leaves_it_as_it_was() -> None:
    with pytest.raises(KeyError), virtual.turned_on():
        assert virtual.is_on()
        with virtual.turned_on():
            pass
        assert virtual.is_on()
        raise KeyError
    assert not virtual.is_on()


def test_layouts_are_looked_for_from_when_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "_is_automatic", False)
    virtual.turn_on_automatic()
    assert virtual.is_automatic() and not virtual.is_on()
