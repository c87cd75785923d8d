"""Guards on argument values that the host has checked during a watched call: which others a replay accepts."""

import numpy as np

from ...tensor.host_known_values import Asked

# So many different arguments are remembered where their numbers count together.
_MOST = 64


class Checked:
    """What recorded calls have let pass of one argument. What none has had is recorded, and refused if it must be."""

    def __init__(self, argument: int, asked: set[Asked]) -> None:
        self.argument = argument
        self._decides = Asked.DECIDES in asked
        self._together = self._decides or Asked.TOGETHER in asked
        self._passed: set[bytes] = set()
        self._least, self._most, self._has_zero = np.inf, -np.inf, False
        self._negative: set[int] = set()

    def admits(self, numbers: np.ndarray | None) -> bool:
        """Whether these may be replayed. `None`: the device alone knows them."""
        if numbers is None:
            return not self._decides
        if not self._counts_each(numbers):
            return numbers.tobytes() in self._passed
        if not (self._least <= numbers.min() and numbers.max() <= self._most):
            return False
        if numbers.dtype.kind == "f":
            return True
        # Among negative numbers one may have a meaning of its own, such as the class that a loss ignores.
        return (self._has_zero or bool(numbers.all())) and self._negative.issuperset(numbers[numbers < 0].tolist())

    def passed(self, numbers: np.ndarray | None) -> None:
        """Takes note of what a recorded call did not refuse."""
        if numbers is None:
            return
        if not self._counts_each(numbers):
            # Of those that decide what is recorded, the replay knows what it was made from.
            if not (self._decides and self._passed) and len(self._passed) < _MOST:
                self._passed.add(numbers.tobytes())
            return
        self._least, self._most = min(self._least, numbers.min()), max(self._most, numbers.max())
        if numbers.dtype.kind == "i":
            self._has_zero = self._has_zero or not numbers.all()
            self._negative.update(numbers[numbers < 0].tolist())

    def _counts_each(self, numbers: np.ndarray) -> bool:
        return not self._together and numbers.dtype.kind in "if"
