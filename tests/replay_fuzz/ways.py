"""The ways in which a random function is run on the device, and what it must do there."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

import torch_xla
from torch_xla.experimental import eager_mode_context

from .compose import run

Function = Callable[..., Any]


def as_it_is(function: Function) -> Function:
    return function


@dataclass(frozen=True)
class Way:
    """How a function is compiled, and where it is called."""

    compiled: Callable[[Function], Function]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    by_dynamo: bool = False


WAYS = {
    "replay": Way(lambda function: torch_xla.compile(function, replay=True)),
    "compile": Way(torch_xla.compile),
    "eager": Way(as_it_is, lambda: eager_mode_context(True)),
    "openxla": Way(lambda function: torch.compile(function, backend="openxla"), by_dynamo=True),
}


_BY_DYNAMO = Way(lambda function: torch.compile(function, backend="aot_eager"), by_dynamo=True)


def outcome(seed: int, device: str, way: Way) -> list[Any]:
    """Return the log of the function of this seed, or the error between two calls."""
    if way.by_dynamo:
        torch._dynamo.reset()
    try:
        with way.around():
            return run(seed, device, way.compiled)
    except Exception as error:  # between two calls: the same on both
        return [type(error).__name__, str(error)]


# The numbers of a model that is trained have more bits than float32 after a while. Then the CPU and XLA round a sum in
# another order, and so much of a number may differ.
ROUNDED = 2.0**-20


class Difference(NamedTuple):
    """The first difference: on the CPU, on the device, and whether all differences are roundings."""

    expected: Any
    ours: Any
    is_rounding: bool


def difference(seed: int, name: str) -> Difference | None:
    """Return the first difference of the function of this seed from the CPU, or `None`.

    Dynamo may change a function's behaviour on the CPU, too. Then that behaviour is expected.
    """
    way = WAYS[name]
    ours = outcome(seed, "xla", way)
    expected = outcome(seed, "cpu", Way(as_it_is))
    if ours != expected and way.by_dynamo:
        expected = outcome(seed, "cpu", _BY_DYNAMO)
    if ours == expected:
        return None
    pairs = zip(expected, ours, strict=False)
    first = next((pair for pair in pairs if pair[0] != pair[1]), (len(expected), len(ours)))
    return Difference(*first, are_rounded(expected, ours))


def are_rounded(one: Any, other: Any) -> bool:
    """Whether two are the same but for the last bits of their numbers."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return bool(one == other or abs(one - other) <= ROUNDED * max(abs(one), abs(other)))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(are_rounded, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(are_rounded, one.values(), other.values()))
    return bool(one == other)
