"""Check the arguments of collectives, and scale, fill and write back around them."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..processes import identity

REDUCTIONS = ("sum", "mul", "and", "or", "min", "max")
_OF_BITS = ("and", "or", "xor")
_OF_ORDER = ("min", "max")


def check_reduction(name: str, reduce_type: str, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse a reduction that does not exist, or not for the dtype of a tensor."""
    if reduce_type not in REDUCTIONS:
        raise ValueError(
            f"{name}(): reduce_type is {reduce_type!r}; expected one of {', '.join(map(repr, REDUCTIONS))}"
        )
    check_dtypes(f"{name}(): reduce_type {reduce_type!r}", reduce_type, tensors)


def check_dtypes(what: str, reduction: str, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse to combine the bits of floats, and to compare complex numbers, in a reduction that the user calls `what`.

    XLA would refuse it when the step is compiled, and with it all else that is recorded.
    """
    for tensor in tensors:
        if reduction in _OF_BITS and (tensor.is_floating_point() or tensor.is_complex()):
            raise ValueError(
                f"{what} combines the bits of integers and bools, and a tensor has dtype {tensor.dtype}; view it as "
                f"integers, or use another reduction"
            )
        if reduction in _OF_ORDER and tensor.is_complex():
            raise ValueError(
                f"{what} compares numbers, and a tensor has dtype {tensor.dtype}: complex numbers have no order; "
                f"reduce torch.view_as_real(tensor), or use another reduction"
            )


def check_groups(name: str, groups: Sequence[Sequence[int]] | None) -> None:
    """Refuse groups that do not divide the replicas: each must be in exactly one group."""
    if not groups:
        return
    if not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError(f"{name}(): groups is {groups!r}; expected a list of lists of ordinals, such as [[0]]")
    ordinals = sorted(ordinal for group in groups for ordinal in group)
    count = identity.replica_count()
    if ordinals != list(range(count)):
        raise ValueError(
            f"{name}(): groups {list(map(list, groups))} do not hold each ordinal from 0 to {count - 1} once; "
            f"this program has {count} replica{'s' if count > 1 else ''}"
        )


def check_ordinals(name: str, ordinals: Iterable[int]) -> None:
    """Refuse ordinals that no replica has."""
    count = identity.replica_count()
    for ordinal in ordinals:
        if not 0 <= ordinal < count:
            raise ValueError(f"{name}(): no replica has ordinal {ordinal}; this program has {count}")


def check_dim(name: str, tensor: torch.Tensor, dim: int) -> int:
    """Return `dim` counted from the front; refuses one the tensor does not have."""
    rank = tensor.dim()
    if not rank:
        raise IndexError(f"{name}(): dimension specified as {dim} but tensor has no dimensions")
    if not -rank <= dim < rank:
        raise IndexError(f"{name}(): dimension out of range (expected [{-rank}, {rank - 1}], but got {dim})")
    return dim % rank


def check_group_size(name: str, what: str, given: int, size: int) -> None:
    """Refuse to divide a tensor into another number of parts than there are replicas in a group."""
    if given != size:
        whole = "this program" if size == identity.replica_count() else "the group"
        raise ValueError(f"{name}(): {what} is {given}; {whole} has {size} replica{'s' if size > 1 else ''}")


def scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    """Return `tensor` times `scale`, in the dtype of `tensor`."""
    return tensor if scale == 1.0 else (tensor * scale).to(tensor.dtype)


def write(targets: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Overwrite each of the `targets` with its result."""
    with torch.no_grad():
        for target, result in zip(targets, results, strict=True):
            target.copy_(result)


def into(output: Any, results: Any) -> Any:
    """Fill `output`, a tensor or a list like `results`, and return it; without `output`, return `results`."""
    if output is None:
        return results
    pairs = [(output, results)] if isinstance(results, torch.Tensor) else zip(output, results, strict=True)
    for target, result in pairs:
        if target.shape != result.shape:
            raise ValueError(f"output has shape {list(target.shape)}; the result has {list(result.shape)}")
        target.copy_(result)
    return output


def check_pairs(pairs: Sequence[Sequence[int]]) -> None:
    """Reject pairs (source, target) with a repeated target or source, or with the ordinal of no replica."""
    for place, mistake in ((1, "two sources send to one target"), (0, "one source sends to two targets")):
        if len({pair[place] for pair in pairs}) < len(pairs):
            raise ValueError(f"collective_permute(): {mistake} in {pairs!r}")
    check_ordinals("collective_permute", [ordinal for pair in pairs for ordinal in pair])


# Set on a part of a parameter that is divided among all replicas: its backward pass has averaged the gradient.
AVERAGED = "_torch_xla_is_averaged"


def gradients_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the gradients that an optimizer's parameters have; what is written to them, the parameters see.

    Those that the replicas have averaged already, each its part, are left out.
    """
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [p.grad.detach() for p in parameters if p.grad is not None and not hasattr(p, AVERAGED)]


def buckets(tensors: Sequence[torch.Tensor], mebibytes: float) -> list[list[torch.Tensor]]:
    """Divide `tensors`, in order, into lists of at most this number of MiB, or of one tensor; 0 means one list."""
    found: list[list[torch.Tensor]] = []
    room = 0.0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if not found or (mebibytes and size > room):
            found.append([])
            room = mebibytes * 2**20
        found[-1].append(tensor)
        room -= size
    return found
