"""What an operation does besides computing its results."""

from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    """The kinds of effects."""

    COLLECTIVE = auto()  # it sends to other processes and receives from them: each must run it
    CALLBACK = auto()  # it calls Python on the host
    ASSERTION = auto()  # its result says whether what was promised holds, and is looked at on the host
    CHECK = auto()  # its result reports on the values that another operation takes, and is looked at on the host


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect: done once, in the order of the recording, whether or not somebody holds the operation's results."""

    kind: Kind
    # Of a collective: which replicas exchange with which, each in one group; none: all with all.
    groups: tuple[tuple[int, ...], ...] = ()
    # Of an assertion: what is said if it does not hold.
    message: str = ""

    @property
    def is_collective(self) -> bool:
        """Whether all processes must run it."""
        return self.kind is Kind.COLLECTIVE

    @property
    def is_reported(self) -> bool:
        """Whether its results are looked at on the host, though nobody holds them."""
        return self.kind in (Kind.ASSERTION, Kind.CHECK)


CALLBACK = Effect(Kind.CALLBACK)
CHECK = Effect(Kind.CHECK)


def assertion(message: str) -> Effect:
    """The effect of an operation whose result, a bool without dimensions, must be true: else `message` is raised.

    That happens the next time the host waits for the device.
    """
    return Effect(Kind.ASSERTION, message=message)


def collective(groups: tuple[tuple[int, ...], ...] = ()) -> Effect:
    """The effect of an operation by which replicas exchange values, in groups or all with all."""
    return Effect(Kind.COLLECTIVE, groups)
