"""PyTorch's assertions about values on the device: they raise where somebody waits next; nothing waits for them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..dispatch.kernels import append, runs_at_once
from ..graph.effect import assertion
from ..graph.interned import table_of_plans
from ..graph.plan import Operand, Plan
from ..graph.spec import Spec, spec_of
from ..lowering.value_checks import ASSERTED
from ..record.storage import snapshot
from ..record.sync import sync_device
from . import indexing

_UNSAID = "Expected Tensor with single nonzero value, but got zero"

_plans: dict[tuple[Spec, str], Plan] = {}
table_of_plans(_plans)


def assert_async(self: Tensor, assert_msg: str = _UNSAID) -> None:
    """`torch._assert_async`: what was computed must not be zero, which the next wait finds out.

    A message is part of the program, as numbers in it are: one that changes makes another program.
    """
    if self.numel() != 1:
        kind = "more than one value" if self.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {kind} is ambiguous")
    known = indexing.known_numbers(self)
    if known is not None and known.size == 1 and not known.any():
        raise RuntimeError(assert_msg)
    value = snapshot(self)
    plan = _plans.get((value.spec, assert_msg))
    if plan is None:
        holds = spec_of((), (), torch.bool)
        plan = Plan(ASSERTED, ((Operand(0),), {}), (value.spec,), (), (holds,), effect=assertion(assert_msg))
        _plans[value.spec, assert_msg] = plan
    append(plan, ([], [value], []), value.device)
    if runs_at_once():
        sync_device(value.device)


def functional_assert_async(self: Tensor, assert_msg: str, dep_token: Tensor) -> Tensor:
    """The form of traced programs: hands on a token, so that what follows comes after it."""
    assert_async(self, assert_msg)
    return dep_token.clone()


KERNELS: dict[str, Callable[..., Any]] = {
    "_assert_async": assert_async,
    "_assert_async.msg": assert_async,
    "_functional_assert_async.msg": functional_assert_async,
}
