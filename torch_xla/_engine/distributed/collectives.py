"""Record collectives: operations that all processes of a program run together."""

import atexit
from collections.abc import Sequence
from multiprocessing import util
from typing import Any

import torch

from ..caching.interning import table_of_plans
from ..compiled import eager
from ..dispatch.recording_kernel import append
from ..ir.call_plan import Operand, Plan
from ..ir.side_effects import collective
from ..ir.tape import Value
from ..ir.value_spec import Spec, contiguous_stride, spec_of
from ..lowering.collectives import exchange
from ..processes import coordination, identity
from ..runtime import platform
from ..step import in_flight
from ..step.schedule import is_common
from ..step.sync import sync_device
from ..tensor.device import existing_devices
from ..tensor.storage import snapshot, wrap

Groups = tuple[tuple[int, ...], ...]

# Plans are compared by identity, so one that is recorded again must be the same object.
_plans: dict[Any, Plan] = {}
table_of_plans(_plans)


def groups_of(groups: Sequence[Sequence[int]] | None) -> Groups:
    """Return the groups as part of a plan; empty for one group of all, in order."""
    found = tuple(tuple(group) for group in groups or ())
    return () if found == (tuple(range(identity.process_count())),) else found


def group_with(members: Sequence[int]) -> Groups:
    """Return groups that include one with these members; the other groups have the same size if possible."""
    count, size = identity.process_count(), len(members)
    rest = [index for index in range(count) if index not in members]
    step = size if len(rest) % size == 0 else 1
    others = [tuple(rest[start : start + step]) for start in range(0, len(rest), step)]
    return groups_of([tuple(members), *others])


def pair(first: int, second: int) -> Groups:
    """Return groups in which these two exchange, the first at place 0."""
    return group_with([first, second])


def place_in(groups: Groups) -> int:
    """Return the place of this process in its group."""
    own = identity.process_index()
    return next((group.index(own) for group in groups if own in group), own)


def size_of(groups: Groups) -> int:
    """Return the number of processes in the group of this one."""
    own = identity.process_index()
    return next((len(group) for group in groups if own in group), identity.process_count())


def all_reduce(tensors: Sequence[torch.Tensor], reduction: str, groups: Groups) -> list[torch.Tensor]:
    """Return new tensors: each reduced over the processes of a group."""
    return _record(exchange.ALL_REDUCE, tensors, (reduction, groups), groups, [t.shape for t in tensors])


def all_gather(tensors: Sequence[torch.Tensor], dim: int, groups: Groups) -> list[torch.Tensor]:
    """Return new tensors: each with those of the other processes of a group along `dim`."""
    size = size_of(groups)
    sizes = [_with(tensor, dim, tensor.shape[dim] * size) for tensor in tensors]
    return _record(exchange.ALL_GATHER, tensors, (dim, size, groups), groups, sizes)


def reduce_scatter(tensors: Sequence[torch.Tensor], reduction: str, dim: int, groups: Groups) -> list[torch.Tensor]:
    """Return new tensors: of each, reduced over a group, the part along `dim` of this process."""
    size = size_of(groups)
    for tensor in tensors:
        _check_divides("reduce_scatter", tensor, dim, size)
    sizes = [_with(tensor, dim, tensor.shape[dim] // size) for tensor in tensors]
    return _record(exchange.REDUCE_SCATTER, tensors, (reduction, dim, size, groups), groups, sizes)


def all_to_all(tensor: torch.Tensor, split: int, concat: int, groups: Groups) -> torch.Tensor:
    """Return a new tensor: part i along `split` of each process of a group goes to process i, along `concat`."""
    size = size_of(groups)
    _check_divides("all_to_all", tensor, split, size)
    sizes = list(_with(tensor, split, tensor.shape[split] // size))
    sizes[concat] *= size
    return _record(exchange.ALL_TO_ALL, [tensor], (split, concat, size, groups), groups, [sizes], is_list=False)[0]


def permute(tensor: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return a new tensor: what the process sends that has this one as its target, or zeros."""
    arguments = (tuple((int(source), int(target)) for source, target in pairs),)
    return _record(exchange.PERMUTE, [tensor], arguments, (), [tensor.shape], is_list=False)[0]


def broadcast(tensors: Sequence[torch.Tensor], root: int, groups: Groups, tag: int = 0) -> list[torch.Tensor]:
    """Return new tensors: those of the process at place `root` of each group, if all think of the same `tag`."""
    arguments = (root, groups, tag) if tag else (root, groups)
    return _record(exchange.BROADCAST, tensors, arguments, groups, [t.shape for t in tensors])


def start() -> None:
    """Start the recorded operations: this process has no result to wait for, but another process waits for its part."""
    for device in existing_devices():
        sync_device(device)


def finish() -> None:
    """Run the recorded collectives and wait until they have ended, before this process leaves the others.

    The other processes may wait for its part of a collective whose result it has never read.
    """
    for device in existing_devices():
        if is_common(device, device.tape.code):
            sync_device(device)
    in_flight.wait()


coordination.before_leaving.append(finish)
# Also in a process that has only recorded, and not met the others yet. Before what `execute` does at the exit.
atexit.register(coordination.leave)


def _leave_at_end_of_fork(_: object) -> None:
    if not platform.is_started():  # else it can use no device, as one that loads data
        coordination.leave_at_end_of_fork()


util.register_after_fork(_leave_at_end_of_fork, _leave_at_end_of_fork)


def _with(tensor: torch.Tensor, dim: int, size: int) -> tuple[int, ...]:
    return (*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])


def _check_divides(name: str, tensor: torch.Tensor, dim: int, count: int) -> None:
    if tensor.shape[dim] % count:
        raise ValueError(
            f"{name}(): dimension {dim} of a tensor of shape {list(tensor.shape)} cannot be divided into {count} equal "
            f"parts, one for each process of the group"
        )


def _record(
    op: str,
    tensors: Sequence[torch.Tensor],
    arguments: tuple[object, ...],
    groups: Groups,
    sizes: Sequence[Sequence[int]],
    is_list: bool = True,
) -> list[torch.Tensor]:
    if not tensors:
        return []
    for tensor in tensors:
        if tensor.device.type != "xla":
            raise ValueError(
                f"{op.removeprefix('xla::')}(): expected tensors on an xla device, got one on {tensor.device}"
            )
    values: list[Value] = [_contiguous(tensor.detach()) for tensor in tensors]
    specs = tuple(value.spec for value in values)
    plan = _plans.get((op, specs, arguments))
    if plan is None:
        plan = _plans[op, specs, arguments] = _plan(op, specs, arguments, groups, sizes, is_list)
    results = [wrap(value) for value in append(plan, ([], [*values], []), values[0].device)]
    if eager.is_on():
        sync_device(values[0].device)
    return results


def _contiguous(tensor: torch.Tensor) -> Value:
    return snapshot(tensor.contiguous().resolve_conj().resolve_neg() if tensor.is_complex() else tensor)


def _plan(
    op: str,
    specs: tuple[Spec, ...],
    arguments: tuple[object, ...],
    groups: Groups,
    sizes: Sequence[Sequence[int]],
    is_list: bool,
) -> Plan:
    operands: Any = [Operand(index) for index in range(len(specs))]
    outputs = tuple(
        spec_of(tuple(size), contiguous_stride(tuple(size)), spec.dtype)
        for size, spec in zip(sizes, specs, strict=True)
    )
    first = operands if is_list else operands[0]
    structure = (len(specs),) if is_list else (-1,)
    return Plan(op, ((first, *arguments), {}), specs, (), outputs, structure, effect=collective(groups))
