"""The few numbers of a tensor that the host knows because it uploaded them, and who is notified of a look.

What they are decides what is refused, and here and there what is recorded. A replay looks at them in the same way.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import numpy as np
import torch

from ..ir.tape import Value
from .storage import value_of


class Asked(Enum):
    """What one wants to know of numbers."""

    EACH = auto()  # whether each lies between two others, and whether one is zero
    TOGETHER = auto()  # whether an operator can take them
    DECIDES = auto()  # what to record


# Told of each value that is asked for.
onlookers: list[Callable[[Value, Asked], None]] = []


def known_numbers(tensor: Any, asked: Asked = Asked.TOGETHER) -> np.ndarray | None:
    """The few numbers in the memory of a tensor, if they came from the host; `None` if the device alone knows them."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
        return None
    value = value_of(tensor)
    for tell in onlookers:
        tell(value, asked)
    return contents_of(value)


def contents_of(value: Value) -> np.ndarray | None:
    """The same of a value, for who tells nobody."""
    contents: np.ndarray | None = getattr(value, "contents", None)
    return contents
