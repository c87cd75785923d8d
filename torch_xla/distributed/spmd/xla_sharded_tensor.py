"""Tensors that lie on the devices of a mesh, and the parts of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..._engine.graph.op_sharding import ShardingType
from ..._engine.host import shards
from ..._engine.record import placement
from ..._engine.record.tiles import op_sharding_of


@dataclass
class XLAShard:
    """What one device has of a tensor: a copy on the CPU.

    `indices` are the slices of the whole, or `...` where the device has all of it. `replica_id` counts the devices that
    have the same part. Sizes that the mesh does not divide are refused, so no part is padded.
    """

    data: torch.Tensor
    indices: EllipsisType | Sequence[slice]
    shard_device: str
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The part without padding: of the shape that `indices` say."""
        return self.data

    @unpadded_data.setter
    def unpadded_data(self, t: torch.Tensor) -> None:
        """Replaces the part."""
        self.data = t


@contextmanager
def no_dispatch() -> Iterator[None]:
    """A block in which tensors of subclasses are operated on as plain ones.

    >>> from torch_xla.distributed.spmd.xla_sharded_tensor import no_dispatch
    >>> with no_dispatch():
    ...     pass
    """
    with torch._C._DisableTorchDispatch():
        yield


class XLAShardedTensor(DTensor):
    """A tensor on `xla` that knows how it lies on the devices of a mesh: what `mark_sharding` returns.

    It is another name of the tensor that was marked: both show the same memory, and gradients pass. What is computed
    from it are plain tensors on `xla`; XLA decides how those lie. `mesh_shape` and `partition_spec` are those of the
    mark, if there is one.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> t = xs.mark_sharding(torch.arange(4.0, device="xla"), xs.get_1d_mesh("data"), ("data",))
    >>> t.local_shards[0].data, type(t * 2)
    (tensor([0., 1., 2., 3.]), <class 'torch.Tensor'>)
    """

    __torch_function__ = torch._C._disabled_torch_function_impl
    __torch_dispatch__ = torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]

    global_tensor: torch.Tensor
    mesh_shape: tuple[int, ...] | None
    partition_spec: Any

    @staticmethod
    def __new__(
        cls: Any, elem: torch.Tensor, mesh_shape: Any = None, partition_spec: Any = None, *args: Any, **kwargs: Any
    ) -> "XLAShardedTensor":
        whole = elem.global_tensor if isinstance(elem, XLAShardedTensor) else elem
        made: XLAShardedTensor = whole.as_subclass(cls)
        if made.requires_grad and whole.is_leaf:
            made.retain_grad()
        made.global_tensor = whole
        made.mesh_shape = mesh_shape
        made.partition_spec = partition_spec
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property
    def local_shards(self) -> list[XLAShard]:
        """The part of each device of this process, copied to the CPU. Waits for the devices."""
        found = shards.local_shards(self.global_tensor)
        whole = self.sharding_type is ShardingType.REPLICATED
        return [XLAShard(part.data, ... if whole else part.indices, part.device, part.replica) for part in found]

    def load_local_shards_(self, shards_: list[XLAShard]) -> None:
        """Writes the parts of this process's devices, in the order of `local_shards`. Every process brings its own.

        Raises `ValueError` for parts of another number, dtype or shape.
        """
        shards.load_local_shards(self.global_tensor, [shard.unpadded_data for shard in shards_])

    @property
    def sharding_spec(self) -> str:
        """How it lies, as XLA writes it: `"{devices=[2,1]0,1}"`, or `"{replicated}"`."""
        return str(op_sharding_of(self.global_tensor))

    @property
    def sharding_type(self) -> ShardingType:
        """The kind of that."""
        return ShardingType(op_sharding_of(self.global_tensor).sharding_type)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"XLAShardedTensor({self.global_tensor!r})"

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.global_tensor.__deepcopy__(memo)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.global_tensor.__reduce_ex__(protocol)


def is_divided(t: torch.Tensor) -> bool:
    """Whether the devices of the program have different parts of `t`, as far as that is known yet."""
    return placement.planned(t) is not None
