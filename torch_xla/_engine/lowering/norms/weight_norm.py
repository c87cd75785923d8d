"""Weight norm: a direction and a length for every slice of a weight, and its gradients."""

import jax
import jax.numpy as jnp
import torch

from ..machinery.dims import without
from ..machinery.opmath import widened
from ..machinery.registry import lowers
from ..reductions.reduction import sum_from_first

aten = torch.ops.aten
# Slices without elements have the length 0; their gradient was 0 / 0 before.
_EMPTY_SLICES_HAVE_A_GRADIENT = torch.__version__ >= (2, 15)  # type: ignore[operator]


@lowers(aten._weight_norm_interface.default)
def weight_norm_interface(v: jax.Array, g: jax.Array, dim: int = 0) -> tuple[jax.Array, jax.Array]:
    """Normalise the slices along `dim`, the first dimension or the last, by their lengths."""
    direction = widened(v)
    norms = jnp.sqrt(jnp.sum(jnp.square(direction), without(dim % v.ndim, v.ndim), keepdims=True))
    return direction * (widened(g) / norms), norms


@lowers(aten._weight_norm_interface_backward.default)
def weight_norm_interface_backward(
    grad_w: jax.Array, saved_v: jax.Array, saved_g: jax.Array, saved_norms: jax.Array, dim: int
) -> tuple[jax.Array, jax.Array]:
    gradient, direction, length, norms = map(widened, (grad_w, saved_v, saved_g, saved_norms))
    others = without(dim % saved_v.ndim, saved_v.ndim)
    along = gradient * direction
    # The signs of zeros are those of the CPU's kernels: the one for the first dimension starts with the first term.
    sums = jnp.sum(along, others) if dim else sum_from_first(along, others)
    along = jnp.expand_dims(sums, others)
    if direction.size or not _EMPTY_SLICES_HAVE_A_GRADIENT:
        along = along / norms
    scale = length / norms
    return gradient * scale - direction * (scale * (along / norms)), along
