"""Every private name of JAX that the engine borrows, and why. Nothing else in the package touches one."""

from typing import Any

import jax
import numpy as np
from jax._src.core import ShapedArray
from jax._src.interpreters import pxla
from jax._src.lax import lax as _lax


def weakly_typed(scalar: jax.Array, dtype: np.dtype) -> jax.Array:
    """`scalar` as a value that behaves like a Python number in type promotion.

    A number that became an argument of a program must promote as it did when it was baked in, and JAX offers no public
    way to make a traced value weakly typed.
    """
    result: Any = _lax._convert_element_type(scalar, dtype, weak_type=True)
    return result


def put(host: np.ndarray, device: jax.Device) -> jax.Array:
    """A buffer with the contents of `host`, in its dtype whatever `jax_enable_x64` says.

    `jax.device_put` does the same by way of a traced primitive, and takes 100 µs where this takes 4.
    """
    sharding = jax.sharding.SingleDeviceSharding(device)
    # Without x64 the numbers would be narrowed to 32 bits under an array that says it has 64.
    with jax.enable_x64(True):
        result: jax.Array = pxla.batched_device_put(ShapedArray(host.shape, host.dtype), sharding, [host], [device])
    return result
