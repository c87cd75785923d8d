"""Who else holds a value, told by reference counts."""

from sys import getrefcount

import torch

from ..graph.tape import Value
from ..record.device import uninitialised


class Constant:
    """Stands among the storages for a value that is the same at every call."""

    def __init__(self, value: Value) -> None:
        self.value = value


def references(values: list[Value]) -> list[int]:
    """The reference count of each."""
    return [getrefcount(value) for value in values]


def _of_owned() -> int:
    constant = Constant(uninitialised((), (), torch.float32, None))  # type: ignore[arg-type]
    return references([constant.value])[0]


# What a value counts that one storage holds, and the list it is looked at in.
OWNED = _of_owned()
