"""Host memory ↔ device buffers. A buffer is a committed single-device `jax.Array`."""

import jax
import numpy as np

from ..private import jax as private
from .platform import is_host


def put(host: np.ndarray, device: jax.Device) -> jax.Array:
    """A buffer with the contents of `host`, which the caller gives away: on a CPU device it may become the buffer."""
    return private.put(host, device)


def get(buffer: jax.Array) -> np.ndarray:
    """The contents of a buffer: read-only, and on a CPU device the buffer's own memory. Waits until it is computed."""
    return np.asarray(buffer)


def move(buffer: jax.Array, device: jax.Device) -> jax.Array:
    """A copy on another device."""
    with jax.enable_x64(True):
        return jax.device_put(buffer, device)


def owned_copy(host: np.ndarray, device: jax.Device) -> np.ndarray:
    """`host` itself where the transfer copies anyway, else a copy the caller cannot write to later."""
    return np.array(host, copy=True) if is_host(device) else host
