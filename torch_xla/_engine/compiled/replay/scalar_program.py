"""The scalar computations of a step as lines of Python: compared between calls, and run by a replay."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...compat.names import torch as private

_OTHERWISE = "it computes something else on the host from call to call"


@dataclass
class HostPart:
    """The host computation of one call: lines of Python, and which of the tape's numbers they compute."""

    lines: list[str]
    messages: dict[int, str]
    numbers: dict[int, str]
    given: dict[str, Any]
    tokens: dict[str, object]
    tensors: list[torch.Tensor]

    def differs(self, other: "HostPart | None") -> str:
        """Return why another call did not compute the same, or nothing."""
        if other is None:
            return _OTHERWISE
        for index, (one, theirs) in enumerate(zip(self.lines, other.lines, strict=False)):
            if one != theirs:
                return other.messages.get(index) or self.messages.get(index) or _OTHERWISE
        is_same = len(self.lines) == len(other.lines) and self.numbers == other.numbers
        return "" if is_same and self.tokens == other.tokens else _OTHERWISE

    def release(self) -> None:
        """Release the inputs of the trace; keep what later calls are compared with."""
        self.given, self.tensors = {}, []


class HostProgram:
    """The host's part of a step, ready to be computed again."""

    def __init__(self, part: HostPart, numbers: Sequence[object], order: Sequence[int]) -> None:
        """Take as `order` the indices of the tape's `numbers` that the program on the device takes."""
        self._tensors = part.tensors
        # Writes go to copies first, and are applied once the program on the device has started.
        self._copies = [tensor.detach().clone() for tensor in part.tensors]
        copies = {id(tensor): copy for tensor, copy in zip(part.tensors, self._copies, strict=True)}
        given = {name: copies.get(id(value), value) for name, value in part.given.items()}
        taken = [part.numbers.get(index) or f"n[{place}]" for place, index in enumerate(order)]
        given["n"] = [numbers[index] for index in order]
        text = "\n    ".join(["def compute():", *part.lines, f"return ({''.join(f'{each}, ' for each in taken)})"])
        exec(text, given)
        self._compute: Callable[[], tuple[float | int, ...] | str] = given["compute"]
        self._kinds = [type(numbers[index]) for index in order]

    def compute(self) -> tuple[float | int, ...] | str:
        """Return the numbers that the program on the device takes this time; or why the function must be recorded."""
        try:
            if self._copies:
                private.copy_each(self._copies, self._tensors)
            numbers = self._compute()
        except (ArithmeticError, TypeError) as error:
            return f"the numbers that the host computes raise {type(error).__name__}"
        if isinstance(numbers, tuple) and list(map(type, numbers)) != self._kinds:
            return "a number that the host computes is of another kind"
        return numbers

    def settled(self) -> Iterator[None]:
        """Return an iterator that, as it is consumed, writes the computed values to the tensors."""
        return map(private.copy_each, (self._tensors,), (self._copies,)) if self._copies else iter(())
