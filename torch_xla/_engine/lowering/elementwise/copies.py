"""Operators that copy, with a conversion between dtypes or without."""

import jax
import jax.numpy as jnp
import torch

from ... import dtypes
from ..machinery.cast import cast
from ..machinery.registry import lowers

aten = torch.ops.aten


@lowers(aten._to_copy.default)
def to_copy(self: jax.Array, *, dtype: torch.dtype | None = None) -> jax.Array:
    return self if dtype is None else cast(self, dtypes.to_jax(dtype))


@lowers(aten.clone.default, aten.lift.default, aten.lift_fresh_copy.default)
def clone(self: jax.Array) -> jax.Array:
    return self


@lowers(aten.copy.default)
def copy(self: jax.Array, src: jax.Array) -> jax.Array:
    return jnp.broadcast_to(cast(src, self.dtype), self.shape)
