"""Abstract buffers: a size and a dtype without memory."""

from typing import Any, NoReturn

import numpy as np

from ..errors import NotComputed


class Placeholder:
    """Programs can be recorded, lowered and compiled for it; a read of its contents is refused."""

    __slots__ = ("dtype", "shape", "sharding")

    nbytes = 0
    is_fully_addressable = True

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, sharding: Any = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.sharding = sharding  # where several devices would have it

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def is_deleted(self) -> bool:
        """Return False: a buffer without memory is never donated."""
        return False

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        self.refuse()

    def block_until_ready(self) -> NoReturn:
        """Refuse to wait: there is nothing to wait for."""
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raise the error for reading the contents."""
        size = ", ".join(map(str, self.shape))
        raise NotComputed(
            f"a placeholder tensor ({self.dtype}[{size}]) holds no memory, so nothing that needs its values can be "
            f"computed: it is there to record a program and look at it. Make a tensor with torch.empty to run it"
        )
