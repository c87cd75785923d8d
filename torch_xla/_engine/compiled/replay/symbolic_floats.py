"""Symbolic floats: floats that record what is computed from them.

Such a number behaves as its `float` in Python's arithmetic, and its trace records each operation. It is no C `float`: a
C function has to convert it, and the trace sees that. PyTorch accepts it as a number, since it is a `torch.SymFloat`,
and passes it unchanged to the trace, which is a function mode.
"""

import operator
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Notes(Protocol):
    """A trace that records operations on its numbers."""

    def computed(self, value: float, text: str) -> object:
        """Note the number `value` that the Python expression `text` gives."""

    def is_so(self, text: str, outcome: bool) -> bool:
        """Note the outcome of the comparison `text`, on which the program depends from here on."""

    def looked_at(self, number: "HostNumber") -> None:
        """Record that the value is used in a way that cannot be traced: it must be the same at every call."""


class HostNumber(torch.SymFloat):
    """One number of a trace: its value in this call, and its name in what the trace writes down."""

    def __init__(self, trace: Notes, value: float, name: str) -> None:
        self._trace = trace
        self._value = value
        self.name = name

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # `isinstance(number, float)` is true
        return float

    @property
    def value(self) -> float:
        """The float, for who sees to it that its origin is kept."""
        return self._value

    def seen(self) -> float:
        """Return the float, for who does with it what is not noted."""
        self._trace.looked_at(self)
        return self._value

    @property
    def node(self) -> "_Node":  # type: ignore[override]
        """How PyTorch's functions in C++ ask for the value, where no mode has seen the call."""
        return _Node(self)

    def __neg__(self) -> object:
        return self._trace.computed(-self._value, f"-{self.name}")

    def __pos__(self) -> "HostNumber":
        return self

    def __abs__(self) -> object:
        return self._trace.computed(abs(self._value), f"abs({self.name})")

    def __bool__(self) -> bool:
        return self._trace.is_so(f"{self.name} != 0.0", self._value != 0.0)

    def __float__(self) -> float:
        return self.seen()

    def __int__(self) -> int:
        return int(self.seen())

    def __trunc__(self) -> int:
        return int(self.seen())

    def __round__(self, digits: int | None = None) -> float | int:
        return round(self.seen(), digits)

    def __floor__(self) -> int:
        return self.seen().__floor__()

    def __ceil__(self) -> int:
        return self.seen().__ceil__()

    def __divmod__(self, other: Any) -> object:
        return divmod(self.seen(), other)

    def __rdivmod__(self, other: Any) -> object:
        return divmod(other, self.seen())

    def __hash__(self) -> int:
        return hash(self.seen())

    def __repr__(self) -> str:
        return repr(self.seen())

    def __str__(self) -> str:
        return str(self.seen())

    def __format__(self, form: str) -> str:
        return format(self.seen(), form)

    def __reduce_ex__(self, _: object) -> tuple[type[float], tuple[float]]:  # copied or pickled it is a plain float
        return float, (self.seen(),)

    def is_integer(self) -> bool:
        """Do as any float."""
        return self.seen().is_integer()

    def as_integer_ratio(self) -> tuple[int, int]:
        """Do as any float."""
        return self.seen().as_integer_ratio()

    def __getattr__(self, name: str) -> object:
        if not hasattr(float, name):
            raise AttributeError(f"'float' object has no attribute '{name}'")
        return getattr(self.seen(), name)


class _Node:
    """Give C++ the value of a number, and never a symbol."""

    def __init__(self, number: HostNumber) -> None:
        self._number = number

    def is_float(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def guard_float(self, *_: object) -> float:
        return self._number.seen()


def _operand(other: Any) -> tuple[object, str] | None:
    """Return the value of an operand, and how it is written; `None` if it knows better what to do with a number."""
    kind = type(other)
    if kind is HostNumber:
        return other.value, other.name
    if kind not in (float, int, bool):
        return None
    text = repr(other)
    if kind is float and not text[-1].isdigit():  # what is infinite or no number has no literal
        text = f"float({text!r})"
    return other, f"({text})"


def _arithmetic(
    symbol: str, function: Callable[[Any, Any], Any]
) -> tuple[Callable[..., object], Callable[..., object]]:
    def forward(self: HostNumber, other: object) -> Any:
        operand = _operand(other)
        if operand is None:
            return NotImplemented
        return self._trace.computed(function(self._value, operand[0]), f"{self.name} {symbol} {operand[1]}")

    def backward(self: HostNumber, other: object) -> object:
        operand = _operand(other)
        if operand is None:
            return NotImplemented
        return self._trace.computed(function(operand[0], self._value), f"{operand[1]} {symbol} {self.name}")

    return forward, backward


def _comparison(symbol: str, function: Callable[[Any, Any], bool]) -> Callable[..., object]:
    def compare(self: HostNumber, other: object) -> bool:
        operand = _operand(other)
        if operand is None:
            return NotImplemented
        return self._trace.is_so(f"{self.name} {symbol} {operand[1]}", function(self._value, operand[0]))

    return compare


for _name, _symbol, _function in (
    ("add", "+", operator.add), ("sub", "-", operator.sub), ("mul", "*", operator.mul),
    ("truediv", "/", operator.truediv), ("floordiv", "//", operator.floordiv), ("mod", "%", operator.mod),
    ("pow", "**", operator.pow),
):  # fmt: skip
    _forward, _backward = _arithmetic(_symbol, _function)
    setattr(HostNumber, f"__{_name}__", _forward)
    setattr(HostNumber, f"__r{_name}__", _backward)
for _name, _symbol, _function in (
    ("lt", "<", operator.lt), ("le", "<=", operator.le), ("gt", ">", operator.gt), ("ge", ">=", operator.ge),
    ("eq", "==", operator.eq), ("ne", "!=", operator.ne),
):  # fmt: skip
    setattr(HostNumber, f"__{_name}__", _comparison(_symbol, _function))
