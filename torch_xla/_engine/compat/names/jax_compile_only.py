"""The name of JAX by which a device that only compiles is known."""

import jax
from jaxlib import _jax


def is_compile_only(device: jax.Device) -> bool:
    """Return whether programs can be compiled for a device, but not run on it: it comes from a topology."""
    return isinstance(getattr(device, "client", None), _jax.CompileOnlyPyClient)
