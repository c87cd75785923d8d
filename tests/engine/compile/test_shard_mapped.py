"""A program that each process runs on arrays of its own; here of one process."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from torch_xla._engine.compat.names import jax as private
from torch_xla._engine.compat.names import jax_starters
from torch_xla._engine.compile.shard_mapped import of_each, starter
from torch_xla._engine.lowering.machinery import replica_axis
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.runtime.buffers import put
from torch_xla._engine.runtime.device_assignment import REPLICAS, Target

CPU = jax.devices("cpu")[0]


def described(*shapes: tuple[int, ...]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]


def total(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
    """The sums over all processes, one behind the other."""
    sums = [replica_axis.in_order(lambda each: jax.lax.psum(each, replica_axis.axis()), each) for each in (x, y)]
    return sums[0] * 2, sums[1]


def lowered(target: Target, shapes: list[tuple[int, ...]]) -> Any:
    with replica_axis.lowering_for(target):
        function, taken = of_each(total, described(*shapes), described(*shapes), target)
        return taken, jax.jit(function, keep_unused=True).trace(*taken).lower()


@pytest.mark.parametrize("shapes", [[(3,), (2, 2)], [(), (4,)], [(), ()]], ids=str)
def test_a_process_gives_and_takes_its_own_arrays(shapes: list[tuple[int, ...]]) -> None:
    target = targets.of_replicas((CPU,))
    _, program = lowered(target, shapes)
    start = starter(target, program.compile())
    arrays = [put(np.full(shape, 1.0 + n, np.float32), target) for n, shape in enumerate(shapes)]
    (results,) = start([arrays])
    assert [each.shape for each in results] == shapes
    for factor, result, array in zip((2, 1), results, arrays, strict=True):
        np.testing.assert_array_equal(result, factor * np.asarray(array))


def test_arrays_of_all_processes_lie_one_behind_the_other() -> None:
    target = targets.of_replicas(private.virtual_cpu_devices(3))
    taken, program = lowered(target, [(2, 5), ()])
    assert [each.shape for each in taken] == [(6, 5), (), (3,)]
    assert [each.sharding.spec for each in taken] == [P(REPLICAS), P(), P(REPLICAS)]
    text = program.as_text()
    assert text.count("all_reduce") >= 2
    assert program.compile().as_text().count("all-reduce") >= 2
    # A value without dimensions is declared equal everywhere, and XLA must not use this.
    _, without = lowered(target, [(2, 5), (3,)])
    assert text.count("stablehlo.select") == without.as_text().count("stablehlo.select") + 1


def test_a_program_of_one_device_starts_by_xlas_own_call_if_it_can() -> None:
    target = targets.of_device(CPU)
    x = put(np.ones(3, np.float32), target)
    plain = jax.jit(lambda x: (x + 1,), keep_unused=True).trace(x).lower().compile()
    calls = jax.jit(lambda x: (jax.pure_callback(np.sin, x, x),), keep_unused=True).trace(x).lower().compile()
    assert jax_starters.starter(calls) is None
    for compiled, expected in ((plain, 2.0), (calls, np.sin(1.0))):
        ((result,),) = starter(target, compiled)([[x]])
        np.testing.assert_allclose(result, jnp.full(3, expected), rtol=1e-6)
