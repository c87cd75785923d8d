"""Puts tensors behind a barrier for the compiler."""

from collections.abc import Sequence

import torch

from ..graph.plan import Operand, Plan
from ..graph.spec import Spec
from ..graph.tape import Value
from ..lowering.barrier import BARRIER
from .device import LOCK, Device
from .storage import hold, operand_slot, snapshot

# Plans are compared by identity, so one that is recorded again must be the same object.
_plans: dict[tuple[Spec, ...], Plan] = {}


def put_barrier(tensors: Sequence[torch.Tensor]) -> None:
    """What is read from `tensors` from now on is computed after all of what they show now."""
    if not tensors:
        return
    with LOCK:
        values = [snapshot(tensor) for tensor in tensors]
        device: Device = values[0].device
        tape = device.tape
        specs = tuple(value.spec for value in values)
        plan = _plans.get(specs)
        if plan is None:
            operands = [Operand(index) for index in range(len(specs))]
            plan = _plans[specs] = Plan(BARRIER, ((operands,), {}), specs, (), specs, (len(specs),))
        slots = [operand_slot(tape, value) for value in values]
        tape.code += (plan, *slots)
        results = [Value(spec, device, tape, len(tape.values) + i) for i, spec in enumerate(specs)]
        tape.values += results
    for tensor, result in zip(tensors, results, strict=True):
        hold(tensor, result)
