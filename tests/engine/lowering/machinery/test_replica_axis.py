"""The properties of a program that a rule can read while it lowers."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.lowering.machinery import replica_axis
from torch_xla._engine.runtime import device_assignment, platform


def alone() -> device_assignment.Target:
    return device_assignment.of_replicas(tuple(platform.local_devices()[:1]))


def test_the_target_is_that_of_the_innermost_block_and_of_this_thread() -> None:
    one, other = alone(), device_assignment.of_device(platform.local_devices()[0])
    assert replica_axis.target_in_use() is None
    seen = []
    with replica_axis.lowering_for(one):
        with pytest.raises(KeyError), replica_axis.lowering_for(other):
            assert replica_axis.target_in_use() is other
            raise KeyError
        assert replica_axis.target_in_use() is one and replica_axis.axis() == device_assignment.REPLICAS
        thread = threading.Thread(target=lambda: seen.append(replica_axis.target_in_use()))
        thread.start()
        thread.join()
    assert replica_axis.target_in_use() is None and seen == [None]


def test_a_program_in_one_process_has_no_axis() -> None:
    for outside in (None, device_assignment.of_device(platform.local_devices()[0])):
        with replica_axis.lowering_for(outside), pytest.raises(RuntimeError, match="that runs in one process"):
            replica_axis.axis()


def test_each_exchange_waits_for_the_one_before() -> None:
    def program(unknown: jax.Array, x: jax.Array, y: jax.Array) -> list[jax.Array]:
        with replica_axis.lowering_for(alone()):
            replica_axis.begin(unknown)
            results = [replica_axis.in_order(lambda array: jax.lax.psum(array, "n"), each) for each in (x, y)]
            return [*results, replica_axis.end()]

    given = np.arange(4, dtype=np.float32), np.ones((4, 2), np.float32), np.full((4, 3), 2, np.float32)
    first, second, done = jax.vmap(program, axis_name="n")(*given)
    np.testing.assert_array_equal(first, np.full((4, 2), 4))
    np.testing.assert_array_equal(second, np.full((4, 3), 8))
    assert done.shape == (4, 1) and not done.any()
    shapes = [jax.ShapeDtypeStruct(each.shape[1:], np.float32) for each in given]
    lines = str(jax.make_jaxpr(program, axis_env=[("n", 4)])(*shapes)).splitlines()
    exchanges = [number for number, line in enumerate(lines) if "psum" in line]
    between = "\n".join(lines[exchanges[0] + 1 : exchanges[1] + 1])
    assert len(exchanges) == 2 and lines[exchanges[0]].split(":")[0].strip() in between


def test_what_was_lowered_last_is_forgotten_with_its_block() -> None:
    with replica_axis.lowering_for(alone()):
        replica_axis.begin(jnp.ones(2))
        with replica_axis.lowering_for(alone()):
            assert getattr(replica_axis._lowering, "latest", None) is None
        assert replica_axis.end().shape == (1,)


def test_a_program_of_one_device_is_not_spread() -> None:
    assert replica_axis.spread_target() is None
    with replica_axis.lowering_for(alone()):
        assert replica_axis.spread_target() is None and replica_axis.target_in_use() is not None
