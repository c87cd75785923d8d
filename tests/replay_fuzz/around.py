"""Where a call of a random function happens: modes, hooks, threads and the like, which PyTorch keeps beside tensors."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..engine.compiled.replay.small_functions import Counting, Doubling


class InAnotherThread:
    """Calls what it is given in a thread that ends with the call."""

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        found: list[Any] = []
        raised: list[Exception] = []

        def work() -> None:
            try:
                found.append(function(*args))
            except Exception as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]
        return found[0]


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    """Make float64 the default dtype within a block."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Operators that have a deterministic form use it."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _saved(seen: list[int]) -> Any:
    return torch.autograd.graph.saved_tensors_hooks(lambda each: (seen.append(1), each)[1], lambda each: each)


# Each is made with a list in which it may note what it sees.
AROUND: dict[str, Callable[[list[int]], Any]] = {
    "no_grad": lambda seen: torch.no_grad(),
    "inference_mode": lambda seen: torch.inference_mode(),
    "function mode": lambda seen: Doubling(),
    "dispatch mode": lambda seen: Counting(),
    "hooks of saved tensors": _saved,
    "anomaly detection": lambda seen: torch.autograd.set_detect_anomaly(True),
    "default device": lambda seen: torch.device("meta"),
    "default dtype": lambda seen: default_dtype(),
    "deterministic": lambda seen: deterministic(),
}


def called(name: str, seen: list[int], function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function where `name` says; "" is nowhere else."""
    if name == "another thread":
        return InAnotherThread()(function, *args)
    with AROUND[name](seen) if name else contextlib.nullcontext():
        return function(*args)


NAMES = (*AROUND, "another thread")
nowhere_else = functools.partial(called, "", [])
