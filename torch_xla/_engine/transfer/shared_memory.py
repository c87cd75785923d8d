"""Which tensors share memory."""

import torch

from ..pytree.nested import collected
from .batch_reads import identity, storage_id


def refuse_shared_views(data: object) -> None:
    """Raise if two tensors in `data` are different views of one storage. Equal views are allowed."""
    seen: dict[int, torch.Tensor] = {}
    for tensor in collected(data, lambda _: True):
        first = seen.setdefault(storage_id(tensor), tensor)
        if identity(first) != identity(tensor):
            raise RuntimeError(
                f"two tensors are views of one storage: one of shape {list(first.shape)}, {first.dtype}, one of shape "
                f"{list(tensor.shape)}, {tensor.dtype}. Clone one of them."
            )
