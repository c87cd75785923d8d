"""Exceptions of our own stay what PyTorch's users catch."""

import builtins
import inspect
import re

import pytest

from torch_xla._engine import errors


def drawn() -> dict[str, str]:
    """The tree in the docstring: the parent of each exception."""
    parents, open_ones = {}, {}
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"( {4,})([A-Z]\w+)(?:  |$)", line):
            depth, name = len(found[1]), found[2]
            open_ones[depth] = name
            if depth > 4:
                parents[name] = open_ones[depth - 2]
    return parents


# PyTorch/XLA asserts that a mesh fits together, and PyTorch raises `ValueError`.
OTHERS: dict[str, type[Exception]] = {"NoLowering": NotImplementedError, "MeshError": ValueError}


def test_the_tree_of_the_docstring_is_that_of_the_classes() -> None:
    classes = dict(inspect.getmembers(errors, inspect.isclass))
    assert drawn() == {name: each.__base__.__name__ for name, each in classes.items()}


@pytest.mark.parametrize("name", drawn())
def test_who_catches_what_pytorch_raises_catches_ours(name: str) -> None:
    with pytest.raises(OTHERS.get(name, RuntimeError), match="^why$"):
        raise getattr(errors, name)("why")
    assert not hasattr(builtins, name)
