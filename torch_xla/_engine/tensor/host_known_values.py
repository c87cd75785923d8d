"""The few numbers of a tensor that the host knows because it uploaded them, and a listener for each look at them.

Checks of values look at them, and a few operators record different operations for different numbers. A replay looks at
them in the same way.
"""

from collections.abc import Callable
from enum import Enum, auto

import numpy as np
import torch

from ..ir.tape import Value
from .storage import value_of


class Asked(Enum):
    """The property of numbers that a check asks for."""

    EACH = auto()  # whether each is between two others, and whether one is zero
    TOGETHER = auto()  # whether an operator can take them
    DECIDES = auto()  # what to record


# Told of each value that is asked for.
onlookers: list[Callable[[Value, Asked], None]] = []


def known_numbers(tensor: object, asked: Asked = Asked.TOGETHER) -> np.ndarray | None:
    """Return the few numbers in the memory of a tensor if they came from the host, else `None`."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
        return None
    value = value_of(tensor)
    for note in onlookers:
        note(value, asked)
    return contents_of(value)


def contents_of(value: Value) -> np.ndarray | None:
    """Return the known numbers of a value without notifying the listener."""
    contents: np.ndarray | None = getattr(value, "contents", None)
    return contents
