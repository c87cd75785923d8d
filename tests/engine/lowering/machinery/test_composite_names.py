"""The names of composites in StableHLO have a namespace."""

import pytest

from torch_xla._engine.lowering.machinery.composite_names import qualified


def test_a_name_gets_a_namespace_where_it_has_none() -> None:
    assert [qualified(name) for name in ("net", "my.net", "my.net.v1$2")] == ["torch_xla.net", "my.net", "my.net.v1$2"]


@pytest.mark.parametrize("name", ["", "a b", ".net", "my.", "1.net", "my-net"])
def test_what_can_be_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the name of a composite has letters"):
        qualified(name)
