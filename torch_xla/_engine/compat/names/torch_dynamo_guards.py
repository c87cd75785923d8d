"""Check Dynamo's guard on saved-tensor hooks without losing an interrupt.

Each compiled graph has a guard that compares the hooks of `torch.autograd.graph.saved_tensors_hooks`. It is written in
Python, and C++ clears what it raises. Ctrl-C raises where a Python function begins, so an interrupt while guards are
checked is lost. A guard of C functions leaves the interrupt to the code that was running.
"""

import functools
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from .. import patch_list

# Takes no interrupt: a function in C. It returns the hooks, or None.
_hooks = functools.partial(torch._C._autograd._top_saved_tensors_default_hooks, True)  # type: ignore[attr-defined]


def _holding(calls: tuple[Callable[[], object], ...], value: object) -> Callable[[], bool]:
    """Return a function in C that calls one after the other, and returns whether one has given `value`."""

    class Calls:
        __iter__ = staticmethod(functools.partial(map, operator.call, calls))

    return functools.partial(operator.contains, Calls(), value)  # type: ignore[arg-type]


def _in_c(guard: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return the guard of a graph without hooks, as a function in C. It asks `guard` while there are hooks."""
    holds = _holding((_holding((_hooks,), None), functools.partial(guard, None)), True)

    class Guard:
        call = staticmethod(holds)
        result = property(operator.methodcaller("call"))

    # A guard is called with an argument, which this takes for the default of an attribute that is there.
    return functools.partial(getattr, Guard(), "result")


def _without_python(original: Callable[[Any, Any], None]) -> Callable[[object, object], None]:
    @functools.wraps(original)
    def guard_hooks(self: Any, guard: Any) -> None:
        def add(check: Callable[[object], bool], *rest: object) -> None:
            self.guard_manager.root.add_lambda_guard(check if _hooks() else _in_c(check), *rest)

        root = SimpleNamespace(add_lambda_guard=add)
        manager = SimpleNamespace(root=root)
        original(SimpleNamespace(guard_manager=manager, _set_guard_export_info=self._set_guard_export_info), guard)

    return guard_hooks


def keep_interrupts() -> None:
    """Have Dynamo check the hooks of graphs that it compiles from now on by C functions."""
    if not patch_list.saved_tensor_guard.in_force:
        patch_list.saved_tensor_guard.wrap(_without_python)
