"""An attribute is replaced under every name, and comes back."""

import sys
from typing import Any

import pytest
import torch
from torch._dynamo import trace_rules

from torch_xla._engine.compat import patch as patch_module

SAID = {"why": "", "until": "", "test": ""}


class Owner:
    """Has what is replaced."""

    @staticmethod
    def add(x: int, y: int) -> int:
        return x + y


class Heir(Owner):
    """Inherits it."""


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, as `theirs.Owner`, `theirs.Heir` and `theirs.add`; and a list of its own."""
    module: Any = type(sys)("theirs")
    module.Owner, module.Heir, module.add = Owner, Heir, Owner.add
    monkeypatch.setitem(sys.modules, "theirs", module)
    monkeypatch.setattr(patch_module, "ALL", [])


def test_a_function_is_replaced_under_every_name(owners: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "add", Owner.add)
    patch = patch_module.Patch("theirs.Owner.add", "theirs.add", **SAID)
    assert patch_module.ALL == [patch] and not patch.in_force
    patch.wrap(lambda original: staticmethod(lambda x, y: original(x, y) + 1))
    assert patch.in_force and Owner.add(1, 2) == sys.modules["theirs"].add(1, 2) == 4


def test_a_function_is_replaced_for_a_time(owners: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "add", original := staticmethod(Owner.add))
    patch = patch_module.Patch("theirs.Owner.add", **SAID)
    with (
        pytest.raises(ZeroDivisionError),
        patch.wrapped(lambda original: staticmethod(lambda x, y: 10 * original(x, y))),
    ):
        assert Owner.add(1, 2) == 30 and patch.in_force
        raise ZeroDivisionError
    assert Owner.add is original.__func__ and not patch.in_force


def test_what_a_class_inherits_comes_back(owners: None) -> None:
    patch = patch_module.Patch("theirs.Heir.add", **SAID)
    patch.put(staticmethod(lambda x, y: 0))
    assert Heir.add(1, 2) == 0
    patch.take_back()
    assert Heir.add(1, 2) == 3 and not patch.in_force and "add" not in vars(Heir)


def test_what_a_release_lacks_is_left_out_there(owners: None) -> None:
    patch = patch_module.Patch("theirs.sub", since="2.0", **SAID)
    patch.wrap(lambda original: original)
    assert not patch.in_force
    with pytest.raises(AttributeError, match="sub"):
        patch_module.Patch("theirs.sub", **SAID).wrap(lambda original: original)


def test_rules_of_dynamo_apply_to_the_replacement(owners: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = trace_rules.get_torch_obj_rule_map()
    monkeypatch.setattr(Owner, "add", original := staticmethod(Owner.add))
    monkeypatch.setitem(rules, Owner.add, rules[torch.sin])
    patch = patch_module.Patch("theirs.Owner.add", **SAID)
    with patch.wrapped(lambda original: staticmethod(lambda x, y: original(x, y))):
        assert Owner.add not in rules  # for a time only, so nothing may stay
    patch.wrap(lambda original: staticmethod(lambda x, y: original(x, y)))
    assert Owner.add is not original.__func__ and rules.pop(Owner.add) is rules[torch.sin]
