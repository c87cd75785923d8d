"""Values that differ on each device."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xla._engine.ir.call_plan import Operand, Plan
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.sharding import MANUAL, Sharding
from torch_xla._engine.ir.value_spec import Spec, contiguous_stride, sharded, spec_of
from torch_xla._engine.lowering.machinery import manual_regions, replica_axis
from torch_xla._engine.lowering.machinery.manual_regions import (
    ALL_REDUCE,
    FULL_TO_SHARD,
    REDUCE_SCATTER,
    SHARD_TO_FULL,
    Manual,
)
from torch_xla._engine.runtime import abstract_devices, device_assignment

aten = torch.ops.aten
ROWS = Sharding(((0,),))


def spec(*size: int) -> Spec:
    return spec_of(size, contiguous_stride(size), torch.float32)


APART = Plan(FULL_TO_SHARD, ((Operand(0), ROWS), {}), (spec(8, 3),), (), (spec(4, 3),))
TOGETHER = Plan(SHARD_TO_FULL, ((Operand(0), ROWS, (8, 3), False), {}), (spec(4, 3),), (), (spec(8, 3),))
DOUBLE = Plan(aten.add.Tensor, ((Operand(0), Operand(0)), {}), (spec(4, 3),), (), (spec(4, 3),))
SUM = Plan(ALL_REDUCE, ((Operand(0), 0.5, ()), {}), (spec(4, 3),), (), (spec(4, 3),))


def test_what_reads_a_value_of_each_device_gives_one_until_it_is_whole_again() -> None:
    operations = [
        Operation(DOUBLE, (0,), 0, -1, 2, 0),
        Operation(APART, (1,), 0, -1, 3, 1),
        Operation(DOUBLE, (3,), 0, -1, 4, 2),
        Operation(TOGETHER, (4,), 0, -1, 5, 3),
        Operation(DOUBLE, (5,), 0, -1, 6, 4),
    ]
    inputs = (spec(4, 3), spec(8, 3))
    assert manual_regions.slots_of(Graph(inputs, tuple(operations), (6,))) == {3, 4}
    of_each = (sharded(spec(4, 3), MANUAL), spec(8, 3))
    assert manual_regions.slots_of(Graph(of_each, tuple(operations), (6,))) == {0, 2, 3, 4}


def test_on_one_device_there_is_nothing_to_divide() -> None:
    x = jnp.arange(12.0, dtype=np.float32).reshape(4, 3)
    whole = Plan(FULL_TO_SHARD, ((Operand(0), None), {}), (spec(4, 3),), (), (spec(4, 3),))
    for plan, factor in ((whole, 1), (SUM, 0.5), (DOUBLE, 2)):
        (found,) = manual_regions.lower_on_devices(plan, [x], [], None)
        np.testing.assert_array_equal(found, x * factor)


def lowered(function, *sizes: tuple[int, ...]) -> tuple[object, str]:  # type: ignore[no-untyped-def]
    """The shapes that a function of arrays gives on four devices, and its StableHLO."""
    four = device_assignment.of_mesh(abstract_devices.virtual_devices(4))
    with replica_axis.lowering_for(four), jax.enable_x64(True):
        given = [jax.ShapeDtypeStruct(size, np.float32, sharding=four.everywhere) for size in sizes]
        made = jax.jit(function).lower(*given)
    return [each.shape for each in jax.tree.leaves(made.out_info)], made.as_text()


def test_each_device_computes_on_what_it_has() -> None:
    def there_and_back(x: jax.Array) -> list[jax.Array]:
        (own,) = manual_regions.lower_on_devices(APART, [x], [], None)
        assert isinstance(own, Manual) and own.array.shape == (4, 4, 3)  # rows over two, a copy over the other two
        (twice,) = manual_regions.lower_on_devices(DOUBLE, [own], [], None)
        (whole,) = manual_regions.lower_on_devices(TOGETHER, [twice], [], None)
        return [twice.array, whole]

    shapes, text = lowered(there_and_back, (8, 3))
    assert shapes == [(4, 4, 3), (8, 3)] and "all_reduce" not in text


def test_collectives_go_over_the_devices() -> None:
    scatter = Plan(REDUCE_SCATTER, ((Operand(0), 1.0, 0, ()), {}), (spec(4, 3),), (), (spec(1, 3),))

    def both(x: jax.Array) -> list[jax.Array]:
        (own,) = manual_regions.lower_on_devices(APART, [x], [], None)
        return [manual_regions.lower_on_devices(plan, [own], [], None)[0].array for plan in (SUM, scatter)]

    shapes, text = lowered(both, (8, 3))
    assert shapes == [(4, 4, 3), (4, 1, 3)] and "all_reduce" in text and "reduce_scatter" in text
