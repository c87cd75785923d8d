"""Every entry of the list names a function of `compat/`."""

from importlib import import_module

import pytest

from torch_xla._engine.compat import replaced_internals


@pytest.mark.parametrize("name", [each.function for each in replaced_internals.REPLACED])
def test_the_function_of_an_entry_exists(name: str) -> None:
    module, _, function = name.rpartition(".")
    assert callable(getattr(import_module(f"torch_xla._engine.compat.{module}"), function))
