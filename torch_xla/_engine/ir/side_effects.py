"""Side effects of operations: collectives, callbacks, assertions."""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto


class EffectKind(Enum):
    """The kinds of effects."""

    COLLECTIVE = auto()  # it sends to other processes and receives from them: each must run it
    CALLBACK = auto()  # it calls Python on the host
    ASSERTION = auto()  # its result says whether what was promised holds, and is looked at on the host
    CHECK = auto()  # its result reports on the values that another operation takes, and is looked at on the host


@dataclass(frozen=True, slots=True)
class Effect:
    """A side effect: it runs once, in the order of recording, whether or not the operation's results are used."""

    kind: EffectKind
    # Of a collective: which replicas exchange with which, each in one group; none: all with all.
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def is_collective(self) -> bool:
        """Return whether all processes must run it."""
        return self.kind is EffectKind.COLLECTIVE

    @property
    def is_reported(self) -> bool:
        """Return whether the host reads its results, although no tensor holds them."""
        return self.kind in (EffectKind.ASSERTION, EffectKind.CHECK)


CALLBACK = Effect(EffectKind.CALLBACK)
CHECK = Effect(EffectKind.CHECK)

# The effect of an operation whose result, a bool without dimensions, must be true: else its message is raised the next
# time the host waits for the device. The message is the first number of the operation, lest another one makes another
# program.
ASSERTION = Effect(EffectKind.ASSERTION)

# The messages of assertions by their numbers, the one used last at the end; and the other way round.
_messages: "OrderedDict[int, str]" = OrderedDict()
_numbers: dict[str, int] = {}
_MOST_MESSAGES = 1 << 14
_next = 0


def number_of(message: str) -> int:
    """Return the number of an assertion's message. It stays the same unless many other messages come in between."""
    global _next
    number = _numbers.get(message)
    if number is None:
        number, _next = _next, _next + 1
        _messages[number], _numbers[message] = message, number
        while len(_messages) > _MOST_MESSAGES:
            _numbers.pop(_messages.popitem(last=False)[1], None)
    else:
        _messages.move_to_end(number)
    return number


def message_of(number: int) -> str:
    """Return the message with this number."""
    return _messages.get(number, f"an assertion does not hold (its message left memory after {_MOST_MESSAGES} others)")


def collective(groups: tuple[tuple[int, ...], ...] = ()) -> Effect:
    """Return the effect of an operation by which replicas exchange values, in groups or all with all."""
    return Effect(EffectKind.COLLECTIVE, groups)
