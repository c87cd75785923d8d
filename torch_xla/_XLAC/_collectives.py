"""The collectives of `torch_xla._XLAC`: those of `torch_xla.core.xla_model`, with the extension's arguments.

Where PyTorch/XLA takes and returns a token, which orders collectives, any object is taken and a new token returned:
collectives run in the order in which they are recorded.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..core import collectives

Tensors = Sequence[torch.Tensor]
Groups = Sequence[Sequence[int]]


class IrValue:
    """A token. It orders nothing, because recorded collectives keep their order."""


_tokens: dict[str, Any] = {}


def _get_all_reduce_token(device: str = "") -> IrValue:
    """Return the token of a device: that of `_set_all_reduce_token`, or a new one."""
    return _tokens.get(str(device)) or IrValue()


def _set_all_reduce_token(device: str, token: IrValue | None = None) -> None:
    """Keep a token for a device, or forget it."""
    _tokens[str(device)] = token


def _xla_all_reduce(
    reduce_type: str, input: torch.Tensor, scale: float = 1.0, groups: Groups = (), pin_layout: bool = True
) -> torch.Tensor:
    """Reduce a tensor over the replicas of each group, then multiply by `scale`."""
    return collectives.all_reduce(reduce_type, input, scale, groups or None, pin_layout)  # type: ignore[return-value]


def _xla_all_reduce_inplace(
    reduce_type: str, inputs: Tensors, scale: float = 1.0, groups: Groups = (), pin_layout: bool = True
) -> None:
    """Reduce a list of tensors in place."""
    collectives.all_reduce(reduce_type, list(inputs), scale, groups or None, pin_layout)


def _xla_all_to_all(
    input: torch.Tensor,
    token: object,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> tuple[torch.Tensor, IrValue]:
    """Exchange the parts of a tensor."""
    return collectives.all_to_all(
        input, split_dimension, concat_dimension, split_count, groups or None, pin_layout
    ), IrValue()


def _xla_all_gather(
    input: torch.Tensor,
    dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> torch.Tensor:
    """Concatenate the values of all replicas. The groups say how many there are; `shard_count` is not used."""
    return collectives.all_gather(input, dim, groups or None, None, pin_layout)  # type: ignore[return-value]


def _xla_all_gather_out(
    output: torch.Tensor,
    input: torch.Tensor,
    token: object,
    dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> IrValue:
    """Concatenate the values of all replicas into `output`."""
    collectives.all_gather(input, dim, groups or None, output, pin_layout)
    return IrValue()


def _xla_all_gather_coalesced(
    inputs: Tensors, token: object, dim: int, shard_count: int, groups: Groups = (), pin_layout: bool = True
) -> list[torch.Tensor]:
    """Concatenate the values of several tensors; the last of the results is a token."""
    return [*collectives.all_gather(list(inputs), dim, groups or None, None, pin_layout), IrValue()]


def _xla_all_gather_coalesced_out(
    outputs: Tensors,
    inputs: Tensors,
    token: object,
    dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> IrValue:
    """Concatenate the values of several tensors into `outputs`."""
    collectives.all_gather(list(inputs), dim, groups or None, list(outputs), pin_layout)
    return IrValue()


def _xla_reduce_scatter(
    reduce_type: str,
    input: torch.Tensor,
    token: object,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> tuple[torch.Tensor, IrValue]:
    """Reduce a tensor over the replicas and keep the part of this one."""
    found: Any = collectives.reduce_scatter(reduce_type, input, scale, scatter_dim, shard_count, groups or None)
    return found, IrValue()


def _xla_reduce_scatter_out(
    reduce_type: str,
    output: torch.Tensor,
    input: torch.Tensor,
    token: object,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> IrValue:
    """Reduce a tensor over the replicas into `output`."""
    collectives.reduce_scatter(reduce_type, input, scale, scatter_dim, shard_count, groups or None, output)
    return IrValue()


def _xla_reduce_scatter_coalesced(
    reduce_type: str,
    inputs: Tensors,
    token: object,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> list[torch.Tensor]:
    """Reduce several tensors over the replicas; the last of the results is a token."""
    found = collectives.reduce_scatter(reduce_type, list(inputs), scale, scatter_dim, shard_count, groups or None)
    return [*found, IrValue()]


def _xla_reduce_scatter_coalesced_out(
    reduce_type: str,
    outputs: Tensors,
    inputs: Tensors,
    token: object,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> IrValue:
    """Reduce several tensors over the replicas into `outputs`."""
    collectives.reduce_scatter(
        reduce_type, list(inputs), scale, scatter_dim, shard_count, groups or None, list(outputs)
    )
    return IrValue()


def _xla_collective_permute(
    input: torch.Tensor, token: object, pairs: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, IrValue]:
    """Send a tensor from source to target for each pair."""
    return collectives.collective_permute(input, pairs), IrValue()


def _xla_send(input: torch.Tensor, token: object, channel_id: int) -> tuple[torch.Tensor, IrValue]:
    """Send a tensor over a channel."""
    return collectives.send(input, channel_id), IrValue()


def _xla_recv(output: torch.Tensor, token: object, channel_id: int) -> tuple[torch.Tensor, IrValue]:
    """Overwrite `output` with what comes over a channel."""
    return collectives.recv(output, channel_id), IrValue()


# Names with an underscore, too: `from ... import *` takes what is listed here.
__all__ = [name for name, value in list(globals().items()) if getattr(value, "__module__", "") == __name__]
