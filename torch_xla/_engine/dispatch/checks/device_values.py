"""On request, record a check beside each operation whose values may be invalid."""

from typing import Any
from weakref import WeakKeyDictionary

import torch

from ...ir.call_plan import Operand, Plan, interned
from ...lowering.machinery.device_value_checks import REPORT, report_plan
from ...tensor.storage import snapshot
from .. import call_planning, recording_kernel

# By plan, while calls are looked at: the plan of its report, if it has one.
_report_plans: WeakKeyDictionary[Plan, Plan | None] = WeakKeyDictionary()

_asked = 0  # how many want values to be checked


def are_on() -> bool:
    """Return whether the values of every operation are checked."""
    return _asked > 0


def ask() -> None:
    """Check the values of every operation that is called from now on, until `ask_no_more` was called as often."""
    global _asked
    _asked += 1
    recording_kernel.look_at_calls(_look)


def ask_no_more() -> None:
    """Undo one `ask`."""
    global _asked
    _asked -= 1
    if not _asked:
        recording_kernel.look_at_calls(None)


def look_at(op: object, *tensors: torch.Tensor) -> None:
    """Check the values of a call of `op` with these tensors, which no rule lowers as a whole."""
    values = [snapshot(tensor) for tensor in tensors]
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = tuple(map(Operand, range(len(values)))), {}
    _look(interned(Plan(op, arguments, tuple(value.spec for value in values), (), (REPORT,))), ([], [*values], []))


def _look(plan: Plan, call: call_planning.Call) -> None:
    if plan not in _report_plans:
        _report_plans[plan] = report_plan(plan)
    wanted = _report_plans[plan]
    if wanted is not None:
        recording_kernel.append(wanted, call, recording_kernel.device_of(call[1], {}))
