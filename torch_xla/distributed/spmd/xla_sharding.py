"""Marks that divide the dimensions of a tensor along the axes of a mesh."""

from dataclasses import dataclass
from typing import Any

import torch

from ..._engine import sharding
from ..._engine.compat.names import torch as private
from ..._engine.compat.names.torch import pytree
from ..._engine.ir import Sharding, XlaShardingSpec
from ..._engine.ir import ShardingType as ShardingType
from ..._engine.lowering.xla_ops.mark_sharding import aot_mark_sharding_fake as aot_mark_sharding_fake
from ..._engine.tensor import Device, device_for, value_of
from .inputs import upload
from .linear import EinsumLinear as EinsumLinear
from .linear import XLAPatchedLinear as XLAPatchedLinear
from .linear import apply_backward_optimization_barrier as apply_backward_optimization_barrier
from .linear import apply_xla_patch_to_nn_linear as apply_xla_patch_to_nn_linear
from .linear import xla_patched_nn_linear_forward as xla_patched_nn_linear_forward
from .manual import _mark_manual_sharding as _mark_manual_sharding
from .manual import disable_manual_sharding as disable_manual_sharding
from .manual import enable_manual_sharding as enable_manual_sharding
from .mesh import HybridMesh as HybridMesh
from .mesh import Mesh as Mesh
from .mesh import PartitionSpec as PartitionSpec
from .mesh import axes_of
from .mesh import get_1d_mesh as get_1d_mesh
from .mesh import get_global_mesh as get_global_mesh
from .mesh import set_global_mesh as set_global_mesh
from .tensor_sharding import dims_over, hashable, refuse_other_rank, sharding_over
from .xla_sharded_tensor import XLAShardedTensor, is_divided


def mark_sharding(
    t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec, dynamo_custom_op: bool = False
) -> XLAShardedTensor:
    """Divide `t`, a tensor on `xla`, over `mesh`, and return an `XLAShardedTensor` that shares its memory.

    `partition_spec` has an entry for each dimension of `t`: `None` leaves it whole, the name or index of an axis
    divides it along that axis, a tuple of axes divides it along all of them, the first one outermost. The tensor is
    replicated along the other axes. A parameter stays divided when it is written to. A mark of an intermediate value
    applies at this point of the program, and XLA moves data between the devices as needed. XLA chooses the sharding of
    gradients and optimizer states, usually that of their parameters. `dynamo_custom_op` is accepted for programs of
    PyTorch/XLA 2 and not used: graphs of `torch.compile` may contain the call in either case.

    Within a trace of `torch.compile`, `aot_function` or `assume_pure` a tensor has no memory to mark: there the result
    is a plain tensor, a divided copy of `t`, and `t` itself is not divided.

    A dimension that the mesh does not divide evenly is padded: each device allocates the size of the largest shard. The
    padding has no meaning, and only `local_shards` shows it.

    Raises `ValueError` if tensor, mesh and partition spec do not fit together, and `RuntimeError` for several devices
    before `torch_xla.runtime.use_spmd()`.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> mesh = xs.Mesh([0], (1, 1), ("data", "model"))
    >>> xs.mark_sharding(torch.ones(2, 2, device="xla"), mesh, ("data", None)).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    whole = unwrap_sharded_tensor(t)
    if _is_traced():
        return _traced("mark_sharding", whole, mesh, partition_spec)  # type: ignore[return-value]
    sharded = _sharding("mark_sharding", whole, mesh, partition_spec)
    if sharded is not _ALONE:
        sharding.mark_sharding(whole, sharded)
    return XLAShardedTensor(whole, mesh.mesh_shape, partition_spec).over(mesh)


_ALONE: Any = object()


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or private.is_traced()


def _traced(name: str, t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """Divide a copy of `t` by an operator, which a trace records."""
    refuse_other_rank(name, t, partition_spec)
    marked: torch.Tensor = torch.ops.xla.aot_mark_sharding(t, mesh._text, str(partition_spec))
    return marked


def _sharding(name: str, t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> Sharding | None:
    dims = dims_over(name, t, mesh, partition_spec)
    return _ALONE if dims is None else sharding_over(t, mesh, dims)  # type: ignore[no-any-return]


def annotate_custom_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> XLAShardedTensor:
    """Divide the current value of `t` as `mark_sharding` does, but do not keep it divided when it is written to.

    If `t` is marked, the mark is replaced: `mark_sharding` refuses to divide a marked tensor in another way.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> xs.annotate_custom_sharding(torch.ones(2, device="xla"), xs.get_1d_mesh("data"), ("data",)).tolist()
    [1.0, 1.0]
    """
    whole = unwrap_sharded_tensor(t)
    sharded = _sharding("annotate_custom_sharding", whole, mesh, partition_spec)
    if sharded is not _ALONE:
        sharding.annotate_sharding(whole, sharded)
    return XLAShardedTensor(whole, mesh.mesh_shape, partition_spec).over(mesh)


class MarkShardingFunction(torch.autograd.Function):
    """The autograd function of `mark_sharding_with_gradients`: `apply(t, mesh, partition_spec)`.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> x = torch.ones(2, device="xla", requires_grad=True)
    >>> xs.MarkShardingFunction.apply(x, xs.get_1d_mesh("data"), ("data",)).tolist()
    [1.0, 1.0]
    """

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
        """Return a divided copy of `t`."""
        ctx.mesh, ctx.partition_spec = mesh, partition_spec
        return _constrained(t, mesh, partition_spec)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        """Return the gradient, divided in the same way."""
        return _constrained(grad_output, ctx.mesh, ctx.partition_spec), None, None


def _constrained(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    if _is_traced():
        return _traced("mark_sharding_with_gradients", t, mesh, partition_spec)
    sharded = _sharding("mark_sharding_with_gradients", t, mesh, partition_spec)
    return t.view_as(t) if sharded is _ALONE else sharding.constrained_to_sharding(t, sharded)


def mark_sharding_with_gradients(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """Return a new tensor with the value of `t`; divide it and its gradient as `mark_sharding` does.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> x = torch.ones(2, device="xla", requires_grad=True)
    >>> xs.mark_sharding_with_gradients(x * 2, xs.Mesh([0], (1,)), (0,)).sum().backward()
    >>> x.grad.tolist()
    [2.0, 2.0]
    """
    if _is_traced():
        return _traced("mark_sharding_with_gradients", unwrap_sharded_tensor(t), mesh, partition_spec)
    applied: torch.Tensor = MarkShardingFunction.apply(unwrap_sharded_tensor(t), mesh, partition_spec)
    return applied


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Replicate `t` on each device, and return it.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> t = torch.ones(2, device="xla")
    >>> xs.clear_sharding(xs.mark_sharding(t, xs.get_1d_mesh("data"), ("data",))) is t
    True
    """
    whole = unwrap_sharded_tensor(t)
    if whole.device.type == "xla" and value_of(whole).device.spread is not None:
        sharding.clear_sharding(whole)
    return whole


def wrap_as_sharded_tensor(
    t: torch.Tensor, mesh_shape: tuple[int, ...] | None = None, partition_spec: PartitionSpec | None = None
) -> XLAShardedTensor:
    """Return `t` as an `XLAShardedTensor` that shares its memory; return `t` if it is one with these properties.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> type(xs.wrap_as_sharded_tensor(torch.ones(2, device="xla"))).__name__
    'XLAShardedTensor'
    """
    if isinstance(t, XLAShardedTensor):
        if mesh_shape is not None and mesh_shape != t.mesh_shape:
            t.over(None)
        t.mesh_shape = mesh_shape or t.mesh_shape
        t.partition_spec = partition_spec or t.partition_spec
        return t
    return XLAShardedTensor(t, mesh_shape, partition_spec)


def unwrap_sharded_tensor(t: torch.Tensor) -> torch.Tensor:
    """Return the plain tensor behind an `XLAShardedTensor`; return any other tensor unchanged.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> t = torch.ones(2, device="xla")
    >>> xs.unwrap_sharded_tensor(xs.wrap_as_sharded_tensor(t)) is t
    True
    """
    return t.global_tensor if isinstance(t, XLAShardedTensor) else t


def wrap_if_sharded(x: Any) -> object:
    """Return a tensor with shards on different devices as an `XLAShardedTensor`; return anything else unchanged.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> xs.wrap_if_sharded("text")
    'text'
    """
    is_plain = isinstance(x, torch.Tensor) and not isinstance(x, XLAShardedTensor)
    return wrap_as_sharded_tensor(x) if is_plain and x.device.type == "xla" and is_divided(x) else x


def shard_as(a: object, b: object) -> tuple[object, object]:
    """Divide each tensor of the structure `b` as its counterpart in the structure `a`, and return both structures.

    If the counterpart's sharding is not decided yet, an operation on both tensors makes XLA choose one for both.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> x, y = xs.shard_as(torch.ones(2, device="xla"), torch.zeros(2, device="xla"))
    >>> y.tolist()
    [0.0, 0.0]
    """
    first, form = pytree.tree_flatten(a)
    second, other = pytree.tree_flatten(b)
    if form != other:
        raise ValueError(f"shard_as(): the two structures differ: {form} and {other}")
    made = []
    for one, two in zip(first, second, strict=True):
        known = sharding.planned_sharding(unwrap_sharded_tensor(one))
        made.append(two if known is None else sharding.constrained_to_sharding(unwrap_sharded_tensor(two), known))
    return a, pytree.tree_unflatten(made, other)


@dataclass
class ShardingSpec:
    """The division of a loader's batches: `input_sharding=` of `MpDeviceLoader`.

    `partition_spec` is that of `mark_sharding`. With `minibatch`, each process loads its own part of the batch, along
    the first dimension; otherwise each process loads all of it.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> spec = xs.ShardingSpec(xs.Mesh([0], (1,), ("data",)), ("data", None))
    >>> spec.can_apply(torch.ones(4, 2)), spec.can_apply(torch.ones(4))
    (True, False)
    """

    mesh: Mesh
    partition_spec: PartitionSpec
    minibatch: bool | None = False

    def __post_init__(self) -> None:
        axes_of("ShardingSpec", self.mesh, hashable(self.partition_spec))
        if self.minibatch and (not self.partition_spec or self.partition_spec[0] is None):
            raise ValueError(
                f"ShardingSpec(minibatch=True): the first dimension is the batch, and each process loads a part of it; "
                f"the partition spec {self.partition_spec} does not divide it"
            )

    def can_apply(self, t: torch.Tensor) -> bool:
        """Return whether `t` has as many dimensions as the spec."""
        return t.dim() == len(self.partition_spec)

    def apply(self, t: torch.Tensor) -> None:
        """Mark `t`, a tensor on `xla` with as many dimensions as the spec."""
        mark_sharding(t, self.mesh, self.partition_spec)

    def xla_spec(self, t: torch.Tensor) -> XlaShardingSpec | None:
        """Return XLA's description of the division of `t`; `None` if `t` has another number of dimensions.

        >>> import torch, torch_xla.distributed.spmd as xs
        >>> print(xs.ShardingSpec(xs.Mesh([0, 1], (2,), ("data",)), ("data", None)).xla_spec(torch.ones(4, 2)))
        {devices=[2,1]0,1}
        """
        if not self.can_apply(t):
            return None
        found = self.mesh.get_op_sharding(self.partition_spec)
        lists = found.tile_assignment, found.group_assignment, found.replication_groups
        return XlaShardingSpec(t, *lists, found.sharding_type, bool(self.minibatch))

    def upload(self, t: torch.Tensor, device: Device | torch.device | str | int | None = None) -> torch.Tensor:
        """Return a tensor on `xla` with the contents of `t`, a CPU tensor. Only its shard is copied to each device.

        With `minibatch`, `t` is this process's part of the batch. A batch that the mesh does not divide evenly, such as
        the last one of a loader without `drop_last`, is padded in memory, as by `mark_sharding`, and the counter
        `UnevenInput` counts it. With `minibatch` in several processes, such a batch raises `ValueError`.

        >>> import torch, torch_xla.distributed.spmd as xs
        >>> xs.ShardingSpec(xs.get_1d_mesh("data"), ("data",)).upload(torch.ones(2)).device
        device(type='xla', index=0)
        """
        return upload(
            t,
            device if isinstance(device, Device) else device_for(device),
            self.mesh,
            self.partition_spec,
            bool(self.minibatch),
        )
