"""Operators of other libraries that come with an implementation for "XLA" run it."""

import pytest
import torch


@pytest.mark.parametrize("in_library", [False, True])
def test_an_implementation_for_xla_is_called(in_library: bool) -> None:
    name = f"library_test_{in_library}".lower()
    library = torch.library.Library(name, "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CPU")
    other = torch.library.Library(name, "IMPL", "XLA" if in_library else "")
    if in_library:
        other.impl("twice", lambda x: x * 2 + 100)
    else:
        torch.library.impl(other, "twice", "XLA")(lambda x: x * 2 + 100)
    twice = getattr(torch.ops, name).twice
    assert twice(torch.ones(2, device="xla")).tolist() == [102.0, 102.0]
    assert twice(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_custom_operator_for_xla() -> None:
    @torch.library.custom_op("library_test::thrice", mutates_args=(), device_types="xla")
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    assert thrice(torch.ones(2, device="xla")).tolist() == [3.0, 3.0]
