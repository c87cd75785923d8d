"""The operators that stay on the CPU by decision exist, have no rule, and run there with a documented reason."""

import warnings

import pytest
import torch

from torch_xla._engine.dispatch import cpu_fallback
from torch_xla._engine.dispatch.cpu_fallback_list import ON_THE_CPU
from torch_xla._engine.lowering.machinery.registry import rule_of


@pytest.mark.parametrize("name", ON_THE_CPU)
def test_it_is_an_operator_without_a_rule_of_its_own_on_every_platform(name: str) -> None:
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    assert packet.overloads()
    if not name.startswith("aten::_linalg_eigvals") and name != "aten::linalg_eig":  # which have one for the host
        assert all(rule_of(getattr(packet, each)) is None for each in packet.overloads())


@pytest.mark.parametrize("name", ON_THE_CPU)
def test_its_warning_gives_the_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_fallback, "_warned", set())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cpu_fallback.warn(name)
        cpu_fallback.warn(name)
    (warning,) = told
    assert ON_THE_CPU[name] in str(warning.message) and str(warning.message).startswith(f"{name} has no XLA lowering")
