"""Manual regions: you write the computation of each device, instead of XLA."""

from typing import Any

import torch

from ..._engine import sharding as _sharding
from ..._engine.ir import Sharding
from ..._engine.tensor import value_of
from .mesh import Mesh, PartitionSpec, get_global_mesh
from .tensor_sharding import dims_over, sharding_over
from .xla_sharded_tensor import XLAShardedTensor


def enable_manual_sharding(
    t: torch.Tensor, partition_spec: PartitionSpec, *, mesh: Mesh | None = None
) -> XLAShardedTensor:
    """Begin a manual region: give each device its part of `t`, divided over `mesh` by `partition_spec`.

    `mesh` is by default the global mesh. The result is one tensor with the size of a part, and each device has its own
    value of it. Until `disable_manual_sharding`, each device computes on its own value. Devices exchange data only in
    `torch_xla._XLAC._xla_spmd_all_reduce` and `_xla_spmd_reduce_scatter`. Each device uses other tensors whole. If the
    mesh does not divide a dimension evenly, the last parts are padded with zeros. Gradients flow through. Reading the
    result as one value raises `RuntimeError`; its `local_shards` are the devices' values.

    Raises `ValueError` if tensor, mesh and partition spec do not fit together.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> mesh, x = xs.get_1d_mesh("data"), torch.arange(8.0, device="xla").view(4, 2)
    >>> own = xs.enable_manual_sharding(x, ("data", None), mesh=mesh)  # each device: some of the rows
    >>> xs.disable_manual_sharding(own * 2, ("data", None), x.shape, mesh=mesh).tolist()
    [[0.0, 2.0], [4.0, 6.0], [8.0, 10.0], [12.0, 14.0]]
    """
    whole = t.shown if isinstance(t, XLAShardedTensor) else t
    chosen = _mesh("enable_manual_sharding", mesh)
    dims = dims_over("enable_manual_sharding", whole, chosen, partition_spec)
    if dims is None:
        return XLAShardedTensor(whole.view_as(whole))
    return XLAShardedTensor(_Enter.apply(whole, sharding_over(whole, chosen, dims)))


def disable_manual_sharding(
    t: torch.Tensor, partition_spec: PartitionSpec, full_shape: torch.Size, *, mesh: Mesh | None = None
) -> XLAShardedTensor:
    """End a manual region: combine the devices' values of `t` to one tensor of `full_shape`.

    If several devices have the same part by `partition_spec`, the value of the first device is used: the values should
    be equal. Raises `ValueError` if `t` does not have the size of a part.

    >>> import torch, torch_xla.distributed.spmd as xs
    >>> mesh, x = xs.get_1d_mesh("data"), torch.ones(2, device="xla")
    >>> xs.disable_manual_sharding(xs.enable_manual_sharding(x, ("data",), mesh=mesh), ("data",), x.shape, mesh=mesh)
    XLAShardedTensor(tensor([1., 1.], device='xla:0'))
    """
    own = t.shown if isinstance(t, XLAShardedTensor) else t
    chosen, size = _mesh("disable_manual_sharding", mesh), tuple(full_shape)
    dims = dims_over("disable_manual_sharding", own, chosen, partition_spec)
    if dims is None:
        return XLAShardedTensor(own.view_as(own))
    sharding = sharding_over(own, chosen, dims)
    expected = _sharding.size_of_part(size, sharding, value_of(own).device.target)
    if tuple(own.shape) != expected:
        raise ValueError(
            f"disable_manual_sharding(): a part of {list(size)} divided as {partition_spec} over {chosen.mesh_shape} "
            f"has the shape {list(expected)}; this tensor has {list(own.shape)}"
        )
    return XLAShardedTensor(_Leave.apply(own, sharding, size), chosen.mesh_shape, partition_spec)


def _mark_manual_sharding(t: torch.Tensor) -> XLAShardedTensor:
    """Give each device its own copy of `t`, in a manual region."""
    whole = t.global_tensor if isinstance(t, XLAShardedTensor) else t
    if value_of(whole).device.spread is not None:
        _sharding.make_manual(whole)
    return XLAShardedTensor(whole)


def _mesh(name: str, mesh: Mesh | None) -> Mesh:
    found = mesh or get_global_mesh()
    if found is None:
        raise ValueError(f"{name}(): there is no mesh. Give mesh=, or set one by set_global_mesh(mesh)")
    return found


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, sharding: Sharding | None) -> torch.Tensor:
        """Return the parts."""
        ctx.sharding, ctx.size = sharding, tuple(whole.shape)
        return _sharding.enter_manual(whole, sharding)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        """Return the gradients of the parts as one tensor. Gradients of copies are summed."""
        return _sharding.leave_manual(grad_output, ctx.sharding, ctx.size, is_summed=True), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, sharding: Sharding | None, size: tuple[int, ...]) -> torch.Tensor:
        """Return the whole tensor."""
        ctx.sharding = sharding
        return _sharding.leave_manual(own, sharding, size)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        """Return the parts of the gradient. Copies share the gradient equally, because `_Enter.backward` sums them."""
        copies = _sharding.copies_of_part(ctx.sharding, grad_output.dim(), value_of(grad_output).device.target)
        return _sharding.enter_manual(grad_output / copies if copies > 1 else grad_output, ctx.sharding), None, None
