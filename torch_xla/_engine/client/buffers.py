"""Host memory ↔ device buffers. A buffer is a committed `jax.Array`: on one device, or divided among several."""

from typing import Any

import jax
import numpy as np

from ..private import jax as private
from .target import Target


def put(host: np.ndarray, target: Target) -> jax.Array:
    """A buffer with the contents of `host`, which the caller gives away: on a CPU device it may become the buffer."""
    return private.put(host, target.device) if not target.is_spread else _everywhere(host, target)


def _everywhere(host: np.ndarray, target: Target) -> jax.Array:
    """A copy on each device of this process."""
    with jax.enable_x64(True):
        return jax.device_put(host, target.everywhere)


def place(buffer: jax.Array, sharding: Any) -> jax.Array:
    """The same contents, divided among devices in another way; the buffer itself if it is divided so."""
    if buffer.sharding.is_equivalent_to(sharding, buffer.ndim):
        return buffer
    with jax.enable_x64(True):
        return jax.device_put(buffer, sharding)


def get(buffer: jax.Array) -> np.ndarray:
    """The contents of a buffer: read-only, and on a CPU device the buffer's own memory. Waits until it is computed."""
    return np.asarray(buffer)


def move(buffer: jax.Array, target: Target) -> jax.Array:
    """A copy on another target."""
    with jax.enable_x64(True):
        return jax.device_put(buffer, target.everywhere)


def owned_copy(host: np.ndarray, target: Target) -> np.ndarray:
    """`host` itself where the transfer copies anyway, else a copy the caller cannot write to later."""
    return np.array(host, copy=True) if target.is_host else host
