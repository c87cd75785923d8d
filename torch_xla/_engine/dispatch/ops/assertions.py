"""PyTorch's assertions on device values: they raise at the next wait and cause none themselves."""

from collections.abc import Callable

import torch
from torch import Tensor

from ...ir.call_plan import Number, Operand, Plan, interned
from ...ir.side_effects import ASSERTION, number_of
from ...ir.value_spec import spec_of
from ...lowering.machinery.device_value_checks import ASSERTED
from ...step.sync import sync_device
from ...tensor.host_known_values import known_numbers
from ...tensor.storage import snapshot
from ..recording_kernel import append, runs_at_once

_UNSAID = "Expected Tensor with single nonzero value, but got zero"


def assert_async(self: Tensor, assert_msg: str = _UNSAID) -> None:
    """Run `torch._assert_async`: what was computed must not be zero, which the next wait finds out.

    Messages may change from step to step: they are no part of the program.
    """
    if self.numel() != 1:
        kind = "more than one value" if self.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {kind} is ambiguous")
    known = known_numbers(self)
    if known is not None and known.size == 1 and not known.any():
        raise RuntimeError(assert_msg)
    value = snapshot(self)
    holds = spec_of((), (), torch.bool)
    plan = Plan(ASSERTED, ((Operand(0), Number(0)), {}), (value.spec,), (int,), (holds,), effect=ASSERTION)
    append(interned(plan), ([], [value], [number_of(assert_msg)]), value.device)
    if runs_at_once():
        sync_device(value.device)


def functional_assert_async(self: Tensor, assert_msg: str, dep_token: Tensor) -> Tensor:
    """Return the form of traced programs: hands on a token, so that what follows comes after it."""
    assert_async(self, assert_msg)
    return dep_token.clone()


KERNELS: dict[str, Callable[..., object]] = {
    "_assert_async": assert_async,
    "_assert_async.msg": assert_async,
    "_functional_assert_async.msg": functional_assert_async,
}
