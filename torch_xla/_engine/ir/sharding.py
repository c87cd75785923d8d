"""A sharding: how a value is divided among devices, as a plain value that is equal in every process."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Sharding:
    """For each dimension of a value, the axes of the target's grid that divide it, the outermost first.

    A dimension without axes is not divided; such dimensions are left out at the end. The value is replicated along axes
    that divide no dimension. Values divided alike on the same devices have equal shardings, whatever the mesh's names.
    """

    dims: tuple[tuple[int, ...], ...]
    is_manual: bool = False  # each device has a value of its own, of the whole size

    def __str__(self) -> str:
        if self.is_manual:
            return "[manual]"
        return f"[{', '.join('.'.join(map(str, axes)) or '-' for axes in self.dims)}]"


MANUAL = Sharding((), True)


class Free(Enum):
    """The mark of a value whose sharding the compiler chooses."""

    ANY = "any"

    def __repr__(self) -> str:
        return self.value


ANY = Free.ANY

# The requested sharding of a result: a sharding, a copy on each device (`None`), or the compiler's choice.
Placed = Sharding | None | Free


def sharding_by(dims: tuple[tuple[int, ...], ...]) -> Sharding | None:
    """Return the sharding that divides dimensions along these axes; `None` if it divides none: every device has a
    copy.
    """
    while dims and not dims[-1]:
        dims = dims[:-1]
    return Sharding(dims) if dims else None


def fitting(sharding: Sharding | None, size: tuple[int, ...]) -> Sharding | None:
    """Return `sharding` for a value of this `size`, without divisions of empty values and of single elements.

    XLA ignores padding behind the end of a dimension, but treats a divided dimension of one element as replicated.
    """
    if sharding is None or sharding.is_manual or 1 not in size and 0 not in size:
        return sharding
    if 0 in size:
        return None
    return sharding_by(tuple(() if length == 1 else axes for axes, length in zip(sharding.dims, size, strict=False)))
