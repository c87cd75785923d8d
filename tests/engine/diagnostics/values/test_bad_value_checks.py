"""Invalid values for operators are reported while the checks are on."""

import pytest
import torch

import torch_xla
from torch_xla._engine.diagnostics.values import bad_value_checks
from torch_xla._engine.dispatch.checks import device_values


def wrong() -> torch.Tensor:
    indices = torch.tensor([1, 6]).to("xla") + 1  # the host does not know them
    return torch.nn.functional.embedding(indices, torch.ones(3, 2).to("xla"))


def test_the_end_of_the_block_raises_and_nothing_is_asked_behind_it() -> None:
    with pytest.raises(IndexError):
        with bad_value_checks.checking():
            wrong()
    assert not device_values.are_on()
    wrong()
    torch_xla.sync(wait=True)


def test_an_error_of_the_block_goes_first() -> None:
    with pytest.raises(KeyError), bad_value_checks.checking():
        raise KeyError
    assert not device_values.are_on()


def test_a_block_within_a_program_that_is_checked_leaves_that_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("XLA_CHECK_VALUES", "1")
        bad_value_checks.apply_settings()
        bad_value_checks.apply_settings()
        with bad_value_checks.checking():
            torch.ones(2).to("xla")
        assert device_values.are_on()
    bad_value_checks.apply_settings()
    assert not device_values.are_on()
