"""Refuse calls with which PyTorch's kernel for the CPU reads or writes beyond the memory of a tensor."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

_OBSERVED = "aten::_fused_moving_avg_obs_fq_helper"
# The arguments that it writes one element of for each channel, or one in all, and their positions.
_STATISTICS = {"running_min": 3, "running_max": 4, "scale": 5, "zero_point": 6}


def refuse_overruns(name: str, args: tuple[Any, ...]) -> None:
    """Raise an error if the kernel of the operator `name` would leave the memory of these tensors of the host."""
    if name == _OBSERVED and bool(args[1]):
        _refuse_short_statistics(*args)


def refuse_falling_offsets(offsets: Sequence[int]) -> None:
    """Raise an error for a bag that would end before it begins: the kernel reads indices that are not there."""
    for before, after in pairwise(offsets):
        if after < before:
            raise RuntimeError(
                f"embedding_bag expects `offsets` that rise from 0, but {after} comes after {before}: offsets[i] is "
                "where bag i begins in the indices, so give the bags in the order of their indices"
            )


def _refuse_short_statistics(*args: Any) -> None:
    tensor, channel, per_row = args[0], args[10], args[11] if len(args) > 11 else False
    if per_row and not args[_STATISTICS["running_min"]].numel():
        return  # the kernel gives all four their sizes
    needed = tensor.size(channel) if per_row else 1
    for name, position in _STATISTICS.items():
        given: Tensor = args[position]
        if given.numel() < needed:
            raise ValueError(
                f"fused_moving_avg_obs_fake_quant expects {needed} element{'s'[: needed != 1]} in {name}, "
                f"{'one for each channel' if per_row else 'for the whole tensor'}, but it has {given.numel()}: make it "
                f"with torch.empty({needed}), or pass per_row_fake_quant={not per_row}"
            )
