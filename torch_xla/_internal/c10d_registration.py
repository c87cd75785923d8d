"""PyTorch's operator `c10d::broadcast_` on `xla`, under the old internal name. Importing this registers nothing."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import BroadcastOptions  # type: ignore[attr-defined]


def broadcast_xla(
    tensors: Sequence[torch.Tensor],
    process_group: Any,
    root_rank: int,
    root_tensor: int = 0,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[list[torch.Tensor], object]:
    """Overwrite `tensors`, of any shapes and dtypes, with those of `root_rank` of the group; return them and a `Work`.

    The returned `Work` is already complete, whatever `async_op` and `timeout` (in milliseconds) are: the broadcast is
    recorded and runs in the step's program. Raises `NotImplementedError` for a `root_tensor` other than 0.

    >>> import torch, torch_xla
    >>> from torch_xla._engine.distributed.process_group import XlaGroup
    >>> from torch_xla._internal.c10d_registration import broadcast_xla
    >>> tensors, work = broadcast_xla([torch.ones(2, device="xla")], XlaGroup(0, [0]), 0)
    >>> tensors[0].tolist()
    [1.0, 1.0]
    """
    if root_tensor != 0:
        raise NotImplementedError(
            f"broadcast_xla(root_tensor={root_tensor}): all tensors of the root are sent, and root_tensor is 0"
        )
    options = BroadcastOptions()
    options.rootRank = root_rank
    work = process_group.broadcast(list(tensors), options)
    return list(tensors), work
