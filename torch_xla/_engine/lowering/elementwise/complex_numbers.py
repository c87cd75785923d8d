"""Complex numbers: make them, conjugate them, and compute their angle."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.opmath import is_complex, widened
from ..machinery.registry import Promotion, lowers
from .complex_functions import angle_of

aten = torch.ops.aten


@lowers(aten._conj_physical.default, aten.conj_physical.default)
def conj_physical(self: jax.Array) -> jax.Array:
    return lax.conj(self) if is_complex(self) else self


@lowers(aten.angle.default, promotion=Promotion.FLOAT)
def angle(self: jax.Array) -> jax.Array:
    if is_complex(self):
        return angle_of(lax.imag(self), lax.real(self))
    # Not atan2: the angle of -0 is 0.
    return jnp.where(self < 0, np.pi, jnp.where(jnp.isnan(self), self, 0))


@lowers(aten.complex.default)
def complex_of_parts(real: jax.Array, imag: jax.Array) -> jax.Array:
    # There is no complex dtype of two float16 in XLA.
    return lax.complex(*jnp.broadcast_arrays(widened(real), widened(imag)))


@lowers(aten.polar.default)
def polar(abs: jax.Array, angle: jax.Array) -> jax.Array:
    abs, angle = widened(abs), widened(angle)
    return lax.complex(abs * lax.cos(angle), abs * lax.sin(angle))
