"""`torch.ops.xla.aot_mark_sharding` and `dynamo_mark_sharding`: sharding marks in graphs of `torch.compile`."""

from typing import Any

import jax
import torch
from torch import Tensor

from ...ir.partition_spec import dims_of, literal
from ...runtime import platform
from ..machinery.jax_sharding import constrain, over_mesh
from ..machinery.registry import lowers
from ..machinery.replica_axis import spread_target
from ..machinery.xla_op_schemas import LIBRARY

LIBRARY.define("aot_mark_sharding(Tensor t, str mesh, str partition_spec) -> Tensor")
LIBRARY.define(
    "dynamo_mark_sharding(Tensor input, int[] device_ids, int[] mesh_shape, str axis_names, str partition_spec)"
    " -> Tensor"
)
LIBRARY.define("dynamo_set_buffer_donor_(Tensor t, bool should_donoate) -> Tensor")


@torch.library.impl(LIBRARY, "dynamo_set_buffer_donor_", "Meta")
def _dynamo_set_buffer_donor_fake(t: Tensor, should_donoate: bool) -> Tensor:
    return torch.empty_like(t)


@torch.library.impl(LIBRARY, "aot_mark_sharding", "Meta")
def aot_mark_sharding_fake(t: Tensor, mesh: str, partition_spec: str) -> Tensor:
    """Return the result of `aot_mark_sharding` in a trace: a tensor like `t`."""
    return torch.empty_like(t)


@torch.library.impl(LIBRARY, "dynamo_mark_sharding", "Meta")
def _dynamo_mark_sharding_fake(input: Tensor, *arguments: object) -> Tensor:
    return torch.empty_like(input)


def _keep_mark(ctx: Any, inputs: tuple[object, ...], output: object) -> None:
    ctx.mark = inputs[1:]


torch.library.register_autograd(
    "xla::aot_mark_sharding",
    lambda ctx, grad: (torch.ops.xla.aot_mark_sharding(grad, *ctx.mark), None, None),
    setup_context=_keep_mark,
    lib=LIBRARY,
)
torch.library.register_autograd(
    "xla::dynamo_mark_sharding",
    lambda ctx, grad: (torch.ops.xla.dynamo_mark_sharding(grad, *ctx.mark), None, None, None, None),
    setup_context=_keep_mark,
    lib=LIBRARY,
)


def described(mesh: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...] | None]:
    """Parse `str(mesh)` to device ids, shape and names of the axes; raise `ValueError` for any other text."""
    found = literal("aot_mark_sharding", mesh)
    try:
        return tuple(found["device_ids"]), tuple(found["mesh_shape"]), found["axis_names"]
    except (KeyError, TypeError):
        raise ValueError(f"aot_mark_sharding(): {mesh!r} is not what str() gives for a mesh") from None


@lowers(torch.ops.xla.aot_mark_sharding.default)
def aot_mark_sharding(t: jax.Array, mesh: str, partition_spec: str) -> jax.Array:
    return _divided(t, *described(mesh), partition_spec)


@lowers(torch.ops.xla.dynamo_set_buffer_donor_.default)
def dynamo_set_buffer_donor_(t: jax.Array, should_donoate: bool) -> jax.Array:
    return t


@lowers(torch.ops.xla.dynamo_mark_sharding.default)
def dynamo_mark_sharding(
    input: jax.Array, device_ids: list[int], mesh_shape: list[int], axis_names: str, partition_spec: str
) -> jax.Array:
    return _divided(
        input, tuple(device_ids), tuple(mesh_shape), literal("dynamo_mark_sharding", axis_names), partition_spec
    )


def _divided(array: jax.Array, ids: tuple[int, ...], shape: tuple[int, ...], names: Any, spec: str) -> jax.Array:
    target = spread_target()
    if target is None:
        return array
    there = platform.all_devices()
    dims = dims_of("mark_sharding", shape, names, literal("mark_sharding", spec))
    return constrain(array, over_mesh(tuple(there[index] for index in ids), shape, dims, target))
