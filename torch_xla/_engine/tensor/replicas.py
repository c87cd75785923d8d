"""Collectives of the one replica there is: what they return, and what they refuse."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..client import processes

REDUCTIONS = ("sum", "mul", "and", "or", "min", "max")


def check_reduction(name: str, reduce_type: str) -> None:
    """Refuses a reduction that does not exist."""
    if reduce_type not in REDUCTIONS:
        raise ValueError(
            f"{name}(): reduce_type is {reduce_type!r}; expected one of {', '.join(map(repr, REDUCTIONS))}"
        )


def check_groups(name: str, groups: Sequence[Sequence[int]] | None) -> None:
    """Refuses groups that do not divide the replicas: each must be in exactly one group."""
    if not groups:
        return
    if not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError(f"{name}(): groups is {groups!r}; expected a list of lists of ordinals, such as [[0]]")
    ordinals = sorted(ordinal for group in groups for ordinal in group)
    count = processes.replica_count()
    if ordinals != list(range(count)):
        raise ValueError(
            f"{name}(): groups {list(map(list, groups))} do not hold each ordinal from 0 to {count - 1} once; "
            f"this program has {count} replica{'s' if count > 1 else ''}"
        )


def check_ordinals(name: str, ordinals: Iterable[int]) -> None:
    """Refuses ordinals that no replica has."""
    count = processes.replica_count()
    for ordinal in ordinals:
        if not 0 <= ordinal < count:
            raise ValueError(f"{name}(): no replica has ordinal {ordinal}; this program has {count}")


def check_dim(name: str, tensor: torch.Tensor, dim: int) -> int:
    """`dim` counted from the front; refuses one the tensor does not have."""
    rank = tensor.dim()
    if not rank:
        raise IndexError(f"{name}(): dimension specified as {dim} but tensor has no dimensions")
    if not -rank <= dim < rank:
        raise IndexError(f"{name}(): dimension out of range (expected [{-rank}, {rank - 1}], but got {dim})")
    return dim % rank


def check_group_size(name: str, what: str, given: int) -> None:
    """Refuses to divide a tensor into more or fewer parts than there are replicas."""
    count = processes.replica_count()
    if given != count:
        raise ValueError(f"{name}(): {what} is {given}; this program has {count} replica{'s' if count > 1 else ''}")


def scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    """A new tensor: the reduction over one replica, times `scale`, in the dtype of `tensor`."""
    return tensor.clone() if scale == 1.0 else (tensor * scale).to(tensor.dtype)


def scale_in_place(tensors: Sequence[torch.Tensor], scale: float) -> None:
    """Overwrites each tensor with its reduction over one replica, times `scale`."""
    if scale != 1.0:
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(tensor * scale)


def into(output: Any, results: Any) -> Any:
    """Fills `output`, a tensor or a list like `results`, and returns it; without one, `results`."""
    if output is None:
        return results
    pairs = [(output, results)] if isinstance(results, torch.Tensor) else zip(output, results, strict=True)
    for target, result in pairs:
        if target.shape != result.shape:
            raise ValueError(f"output has shape {list(target.shape)}; the result has {list(result.shape)}")
        target.copy_(result)
    return output


def permuted(tensor: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """What this replica receives when each source of `pairs` sends to its target: zeros if nobody sends to it."""
    targets = [target for _, target in pairs]
    if len(set(targets)) < len(targets):
        raise ValueError(f"collective_permute(): two sources send to one target in {pairs!r}")
    check_ordinals("collective_permute", [ordinal for pair in pairs for ordinal in pair])
    return tensor.clone() if targets else torch.zeros_like(tensor)


def gradients_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients of all parameters of an optimizer that have one; what is written to them, the parameters see."""
    return [p.grad.detach() for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
