"""Who else holds a value or a gradient, told by reference counts."""

from sys import getrefcount
from typing import Any

import torch

from ..graph.tape import Value
from ..tensor.device import uninitialised


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


def _of_a_parameter() -> int:
    parameter, gradient = torch.ones(1, requires_grad=True), torch.ones(1)
    before = getrefcount(gradient)
    parameter.grad = gradient
    return getrefcount(gradient) - before


# What a gradient counts because it is the gradient of a parameter.
OF_A_PARAMETER = _of_a_parameter()


def of_gradients(gradients: list[Any]) -> list[int]:
    """What each gradient counts."""
    return [getrefcount(gradient) for gradient in gradients]
