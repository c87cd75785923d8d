"""Marks of composites are recorded by number: a step that does the same is the same program."""

import pytest
import torch

import torch_xla

mark = torch.ops.xla.mark_tensor


def listing(*identities: str) -> str:
    x = torch.ones(2).to("xla")
    for identity in identities:
        x = mark(mark(x, "my.net", 0, identity, True) + 1, "my.net", 0, identity, False)
    return torch_xla._XLAC._get_xla_tensors_text([x])


def test_the_identity_of_a_composite_is_its_number_among_those_of_the_program() -> None:
    torch_xla.sync()
    first = listing("one", "two")
    assert first.count("id=0") == first.count("id=1") == 2
    torch_xla.sync()
    assert listing("three", "four") == first


def test_attributes_are_an_object() -> None:
    with pytest.raises(ValueError, match="takes the attributes of 'my.net' as a JSON object"):
        mark(torch.ones(2).to("xla"), "my.net", 0, "a", True, "[1]")
