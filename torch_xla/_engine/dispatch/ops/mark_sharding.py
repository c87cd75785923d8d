"""`aot_mark_sharding`, `dynamo_mark_sharding` and `dynamo_set_buffer_donor_` called outside of a graph."""

from typing import Any

from torch import Tensor

from ...ir.partition_spec import Dims, dims_of, literal
from ...ir.sharding import Sharding
from ...lowering.machinery.xla_op_schemas import LIBRARY
from ...lowering.xla_ops.mark_sharding import described
from ...sharding import placement
from ...step import donation
from ...tensor.storage import value_of

# Outside of a graph they mark, which to record what they do in one would not.
KERNELS_OF_THEIR_OWN = frozenset(
    ("xla::aot_mark_sharding", "xla::dynamo_mark_sharding", "xla::dynamo_set_buffer_donor_")
)


def aot_mark_sharding(t: Tensor, mesh: str, partition_spec: str) -> Tensor:
    """Return a copy of `t`, divided so."""
    ids, shape, names = described(mesh)
    dims = dims_of("aot_mark_sharding", shape, names, literal("aot_mark_sharding", partition_spec))
    return placement.constrained(t, _over(t, ids, shape, dims)) if _is_spread(t) else t.clone()


def dynamo_mark_sharding(
    input: Tensor, device_ids: list[int], mesh_shape: list[int], axis_names: str, partition_spec: str
) -> Tensor:
    """Mark `input`, and return a copy of it."""
    who = "dynamo_mark_sharding"
    dims = dims_of(who, mesh_shape, literal(who, axis_names), literal(who, partition_spec))
    if _is_spread(input):
        placement.mark(input, _over(input, tuple(device_ids), tuple(mesh_shape), dims))
    return input.clone()


def dynamo_set_buffer_donor_(t: Tensor, should_donoate: bool) -> Tensor:
    """Mark the memory of `t` as donated to the next program that reads it. Return `t`, or a copy on the CPU.

    In a graph of `torch.compile` it has no effect: such graphs reuse the memory of unreferenced inputs anyway.
    """
    if t.device.type != "xla":
        return t.clone()
    donation.mark(value_of(t), should_donoate)
    return t


def _is_spread(tensor: Tensor) -> bool:
    return tensor.device.type == "xla" and value_of(tensor).device.spread is not None


def _over(tensor: Any, ids: tuple[int, ...], shape: tuple[int, ...], dims: Dims) -> Sharding | None:
    return placement.sharding_over(value_of(tensor).device, placement.DeviceIds(ids), shape, dims)


def register_marking() -> None:
    """Register these kernels for every device; on other devices they copy."""
    LIBRARY.impl("aot_mark_sharding", aot_mark_sharding, "CompositeExplicitAutograd")
    LIBRARY.impl("dynamo_mark_sharding", dynamo_mark_sharding, "CompositeExplicitAutograd")
    LIBRARY.impl("dynamo_set_buffer_donor_", dynamo_set_buffer_donor_, "CompositeExplicitAutograd")
