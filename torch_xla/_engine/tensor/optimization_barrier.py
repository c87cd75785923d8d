"""Put tensors behind an optimization barrier, or after another computation."""

from collections.abc import Sequence

import torch

from ..caching.interning import table_of_plans
from ..ir.call_plan import Operand, Plan
from ..ir.tape import Value
from ..ir.value_spec import Spec
from ..lowering.machinery.barrier import AFTER, BARRIER
from .device import LOCK, Device
from .storage import hold_together, record_plan, snapshot, value_of

# Plans are compared by identity, so one that is recorded again must be the same object.
_plans: dict[tuple[str, tuple[Spec, ...]], Plan] = {}
table_of_plans(_plans)


def put_barrier(tensors: Sequence[torch.Tensor]) -> None:
    """Make later reads of `tensors` wait until all of their present values are computed."""
    if tensors:
        _replace(tensors, BARRIER, [])


def delayed(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies of `tensors` that depend on the operation recorded last and are new values to the compiler.

    It does not merge operations on them with equal operations on the originals, nor move them before the operation
    recorded last.
    """
    copies = [tensor.detach().clone() for tensor in tensors]
    if copies:
        last = value_of(copies[0]).device.tape.values[-1:]
        _replace(copies, AFTER if last else BARRIER, last)
    return copies


def _replace(tensors: Sequence[torch.Tensor], op: str, others: Sequence[Value]) -> None:
    with LOCK:
        values = [snapshot(tensor) for tensor in tensors]
        device: Device = values[0].device
        specs = tuple(value.spec for value in values)
        read = (*specs, *(value.spec for value in others))
        plan = _plans.get((op, read))
        if plan is None:
            operands = [Operand(index) for index in range(len(read))]
            arguments = (operands[: len(specs)], *operands[len(specs) :])
            plan = _plans[op, read] = Plan(op, (arguments, {}), read, (), specs, (len(specs),))
        results = record_plan(plan, (*values, *others), device)
    hold_together(tensors, results)
