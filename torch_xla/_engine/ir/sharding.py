"""A sharding: how a value is divided among devices, as a plain value that is equal in every process."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Sharding:
    """For each dimension of a value the axes of the target's grid that divide it, the outermost first.

    A dimension without axes is not divided, and of such ones at the end nothing is said. Along axes that divide no
    dimension lie copies. However a program names its mesh, what lies on the same devices has the same sharding.
    """

    dims: tuple[tuple[int, ...], ...]
    is_manual: bool = False  # each device has a value of its own, of the whole size

    def __str__(self) -> str:
        if self.is_manual:
            return "[manual]"
        return f"[{', '.join('.'.join(map(str, axes)) or '-' for axes in self.dims)}]"


MANUAL = Sharding((), True)


class Free(Enum):
    """What is said of a value whose sharding the compiler chooses."""

    ANY = "any"

    def __repr__(self) -> str:
        return self.value


ANY = Free.ANY

# What is asked for of a result: a sharding, a copy on each device (`None`), or any.
Placed = Sharding | None | Free


def sharding_by(dims: tuple[tuple[int, ...], ...]) -> Sharding | None:
    """The sharding that divides dimensions along these axes; `None` if it divides none: every device has a copy."""
    while dims and not dims[-1]:
        dims = dims[:-1]
    return Sharding(dims) if dims else None


def fitting(sharding: Sharding | None, size: tuple[int, ...]) -> Sharding | None:
    """`sharding` for a value of this `size`: of no elements there are no parts, and one element is not divided.

    What lies behind a dimension's end XLA leaves out, but not behind one of a single element: that it takes for copies.
    """
    if sharding is None or sharding.is_manual or 1 not in size and 0 not in size:
        return sharding
    if 0 in size:
        return None
    return sharding_by(tuple(() if length == 1 else axes for axes, length in zip(sharding.dims, size, strict=False)))
