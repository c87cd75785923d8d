"""An executable is given the numbers of each run, whether they are those of the run before or not."""

from typing import Any

import jax
import numpy as np

from torch_xla._engine.compile import shard_mapped
from torch_xla._engine.compile.launch_adapter import whole, without
from torch_xla._engine.runtime import buffers
from torch_xla._engine.runtime import device_assignment as targets

CPU = targets.of_device(jax.devices("cpu")[0])


def test_each_run_has_its_own_numbers_and_keys() -> None:
    def function(x: Any, floats: Any, ints: Any, keys: Any) -> list[Any]:
        return [x * floats[0] + ints[0], keys + 0]

    x = buffers.put(np.ones(2, np.float32), CPU)
    floats, ints, keys = np.array([0.5]), np.array([3]), np.array([[1, 2, 3, 4]], np.uint32)
    with jax.enable_x64(True):
        compiled = jax.jit(function).lower(x, floats, ints, keys).compile()
    start = whole(shard_mapped.starter(CPU, compiled), CPU)
    for scale, added, key in ((0.5, 3, 1), (0.5, 3, 2), (0.25, 3, 2), (0.25, 4, 2), (0.5, 3, 1)):
        ((result, drawn),) = start([x], np.array([scale]), np.array([added]), keys * np.uint32(key))
        assert np.asarray(result).tolist() == [scale + added] * 2
        assert np.asarray(drawn).tolist() == (keys * key).tolist()


def test_numbers_that_are_arguments_are_zero_in_the_key() -> None:
    packed = bytes(range(1, 25))
    assert without(packed, ()) is packed
    assert without(packed, (0, 2)) == bytes(8) + packed[8:16] + bytes(8)
