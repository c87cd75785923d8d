"""Counters: how often something happened, by name."""

from collections.abc import Callable


class Counter:
    """A named count. Where it is hot, keep the object: `counter.value += 1` costs a tenth of `count(name)`.

    There is no lock: the interpreter does not switch threads between the read and the write of `value += n`.
    """

    __slots__ = ("name", "value")

    def __init__(self, name: str) -> None:
        self.name = name
        self.value = 0


class Total(Counter):
    """A count derived from a number that `total` returns: its growth since the counter was cleared."""

    __slots__ = ("_cleared_at", "_total")

    def __init__(self, name: str, total: Callable[[], int]) -> None:
        self._total = total
        super().__init__(name)

    @property
    def value(self) -> int:  # type: ignore[override]
        """The count."""
        return max(0, self._total() - self._cleared_at)

    @value.setter
    def value(self, value: int) -> None:
        self._cleared_at = self._total() - value


_counters: dict[str, Counter] = {}

# Functions that compute late counts when they are read: for each name, the amount to add to its counter. The second
# function of a pair is called when the counters are cleared.
uncounted: list[tuple[Callable[[], dict[str, int]], Callable[[], None]]] = []


def _uncounted() -> dict[str, int]:
    found: dict[str, int] = {}
    for late_counts, _ in uncounted:
        for name, amount in late_counts().items():
            found[name] = found.get(name, 0) + amount
    return found


def counter(name: str) -> Counter:
    """Return the counter called `name`. Reports show it once it has counted something."""
    found = _counters.get(name)
    return _counters.setdefault(name, Counter(name)) if found is None else found


def register(made: Counter) -> None:
    """Add a counter of another kind."""
    _counters[made.name] = made


def count(name: str, amount: int = 1) -> None:
    """Add `amount` to the counter called `name`."""
    found = _counters.get(name)
    if found is None:
        found = counter(name)
    found.value += amount


def value_of(name: str) -> int | None:
    """Return the count, or `None` if nothing was counted under this name."""
    found = _counters.get(name)
    value = (found.value if found is not None else 0) + _uncounted().get(name, 0)
    return value or None


def names() -> list[str]:
    """Return the names under which something was counted, sorted."""
    counted = {found.name for found in list(_counters.values()) if found.value}
    return sorted(counted | set(_uncounted()))


def clear() -> None:
    """Set every counter to zero; the objects stay valid, since other rooms keep them."""
    for found in list(_counters.values()):
        found.value = 0
    for _, forget in uncounted:
        forget()
