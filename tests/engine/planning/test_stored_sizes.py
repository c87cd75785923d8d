"""The stored size of a value is learnt from the programs that take or return it."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.topologies import needs_tpu_compiler
from torch_xla._engine.planning import hlo_parser
from torch_xla._engine.planning.stored_sizes import StoredSizes, kind_of
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.runtime import topologies

TEXT = """HloModule m, entry_computation_layout={LAYOUT}, num_partitions=1

ENTRY %main (x: f32[3,5]) -> f32[3,5] {
  ROOT %x = f32[3,5]{1,0:T(4,128)} parameter(0)
}
""".replace("LAYOUT", "(f32[3,5]{1,0:T(4,128)}, bf16[]{:T(256)S(5)})->(s32[10]{0:T(128)}, pred[]{:T(512)})")


@pytest.mark.parametrize(("dtype", "name"), [
    ("float32", "f32"), ("bfloat16", "bf16"), ("int64", "s64"), ("uint8", "u8"), ("bool", "pred"),
    ("complex64", "c64"), ("float8_e4m3fn", "f8e4m3fn"),
])  # fmt: skip
def test_dtypes_have_xlas_names(dtype: str, name: str) -> None:
    assert kind_of((2, 3), jnp.dtype(dtype)) == (name, (2, 3))


def test_inputs_and_results_are_learnt_but_not_what_the_host_keeps() -> None:
    sizes = StoredSizes()
    sizes.learn([hlo_parser.module(TEXT)])
    assert (
        sizes.of((3, 5), "float32") == 4 * 128 * 4 and sizes.of((10,), "int32") == 512 and sizes.of((), "bool") == 512
    )
    assert sizes.of((), jnp.bfloat16) == 2 and sizes.of((7, 7), "float32") == 196


def test_only_a_tpu_is_asked() -> None:
    sizes = StoredSizes()
    target: Any = SimpleNamespace(platform="cpu")
    sizes.ask([jnp.ones(3)], target)
    assert sizes.known == {}


@needs_tpu_compiler
def test_a_tpu_is_asked_for_what_no_program_had() -> None:
    (device,) = topologies.devices_of(topologies.named("v5e:1x1"))
    sizes, placed = StoredSizes(), jax.sharding.SingleDeviceSharding(device)
    arrays = [jax.ShapeDtypeStruct((3, 5, 7, 2), jnp.float32, sharding=placed),
              jax.ShapeDtypeStruct((), jnp.float32, sharding=placed)]  # fmt: skip
    sizes.ask(arrays, targets.of_device(device))
    assert sizes.of((), "float32") == 512 and sizes.of_array(arrays[0]) > 4 * 210 * 4


@needs_tpu_compiler
def test_a_tpu_is_not_asked_for_what_its_compiler_is_kept_from() -> None:
    (device,) = topologies.devices_of(topologies.named("v5e:1x1"))
    placed = jax.sharding.SingleDeviceSharding(device)
    with jax.enable_x64(True):
        array = jax.ShapeDtypeStruct((3, 5), np.complex128, sharding=placed)
    sizes = StoredSizes()
    sizes.ask([array], targets.of_device(device))
    assert sizes.of_array(array) == 3 * 5 * 16
