"""Guards on argument values that the host has checked during a watched call: which others a replay accepts."""

import numpy as np

from ...tensor.host_known_values import Asked

# Most combinations of numbers remembered for arguments that are checked together.
_MOST = 64


class Checked:
    """The values of one argument that recorded calls accepted. Another value is recorded, where it may be refused."""

    def __init__(self, argument: int, asked: set[Asked]) -> None:
        self.argument = argument
        self._decides = Asked.DECIDES in asked
        self._together = self._decides or Asked.TOGETHER in asked
        self._passed: set[bytes] = set()
        self._least, self._most, self._has_zero = np.inf, -np.inf, False
        self._negative: set[int] = set()

    def admits(self, numbers: np.ndarray | None) -> bool:
        """Return whether these may be replayed. `None`: the device alone knows them."""
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
        """Remember numbers that a recorded call accepted."""
        if numbers is None:
            return
        if not self._counts_each(numbers):
            # Numbers that decide what is recorded: the replay was made from the first ones.
            if not (self._decides and self._passed) and len(self._passed) < _MOST:
                self._passed.add(numbers.tobytes())
            return
        self._least, self._most = min(self._least, numbers.min()), max(self._most, numbers.max())
        if numbers.dtype.kind == "i":
            self._has_zero = self._has_zero or not numbers.all()
            self._negative.update(numbers[numbers < 0].tolist())

    def _counts_each(self, numbers: np.ndarray) -> bool:
        return not self._together and numbers.dtype.kind in "if"
