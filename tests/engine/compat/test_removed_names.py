"""A name that is no longer there says why, and what to write instead; any other is unknown as in every module."""

import importlib

import pytest

from torch_xla._engine.compat.removed_names import REASONS, asked_of


@pytest.mark.parametrize("name", REASONS)
def test_each_module_refuses_its_names(name: str) -> None:
    module = importlib.import_module(name)
    for refused, reason in REASONS[name].items():
        assert refused not in vars(module)
        with pytest.raises(AttributeError) as refusal:
            getattr(module, refused)
        assert str(refusal.value) == f"{name}.{refused} is not in this version of torch_xla: {reason}."
        assert not reason.endswith(".") and not hasattr(module, refused)


def test_other_names_are_unknown_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="^module 'torch_xla.stablehlo' has no attribute 'nothing'$"):
        asked_of("torch_xla.stablehlo")("nothing")
