"""Call PyTorch's reference functions without importing Dynamo.

Most meta kernels are reference functions, and these are kept from Dynamo by a wrapper that imports Dynamo at its first
call: for 0.8 s, in every process that records `x * 2`. Before Dynamo is imported it compiles nothing, and no function
has to be kept from it.
"""

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch._refs
import torch._refs.fft
import torch._refs.linalg
import torch._refs.nn.functional
import torch._refs.special
from torch import _compile as compile_of_torch

_MODULES = (torch._refs, torch._refs.fft, torch._refs.linalg, torch._refs.nn.functional, torch._refs.special)

# Where PyTorch's wrapper looks for the function that Dynamo leaves alone, before it imports Dynamo to make it.
_FOUND_AT = "__dynamo_disable"
# What the wrapper calls the function. Its `__wrapped__` is another one where a second decorator has set that.
_WRAPPED = "fn"


def call_references_without_dynamo() -> None:
    """Have the reference functions called as they are until something else imports Dynamo.

    A release whose wrapper looks elsewhere is left as it is: there the first operation imports Dynamo.
    """
    wrapper = next(
        (each for each in compile_of_torch._disable_dynamo.__code__.co_consts if type(each) is CodeType), None
    )
    if wrapper is None or _FOUND_AT not in wrapper.co_consts or _WRAPPED not in wrapper.co_freevars:
        return
    place = wrapper.co_freevars.index(_WRAPPED)
    for function in _functions():
        if function.__code__ is wrapper and function.__closure__ is not None:
            _leave_alone(function, function.__closure__[place].cell_contents)


def _functions() -> Iterator[FunctionType]:
    """Yield the functions of PyTorch's modules of references, and the functions inside these."""
    waiting: list[object] = [each for module in _MODULES for each in vars(module).values()]
    seen = set[int]()
    while waiting:
        function = waiting.pop()
        if type(function) is FunctionType and id(function) not in seen:
            seen.add(id(function))
            yield function
            waiting += [cell.cell_contents for cell in function.__closure__ or ()]


def _leave_alone(wrapper: Callable[..., object], function: Callable[..., object]) -> None:
    def call(*args: Any, **kwargs: Any) -> object:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        vars(function).pop(_FOUND_AT, None)  # from now on as PyTorch has it
        return wrapper(*args, **kwargs)

    vars(function).setdefault(_FOUND_AT, call)
