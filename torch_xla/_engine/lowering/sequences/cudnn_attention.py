"""Attention by cuDNN's fused kernel, which JAX provides for NVIDIA GPUs.

It is asked for in half precision, without a mask and dropout, where one device computes alone. JAX says whether cuDNN
has a kernel for the sizes and the GPU; where it has none, the scores are computed.
"""

import functools
import math
from typing import Any

import jax
import numpy as np

from ...compat.names import jax as private
from ..machinery import replica_axis

_NARROW = (np.dtype("bfloat16"), np.dtype(np.float16))


def attention(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: Any, dropout_p: Any, is_causal: bool, scale: Any
) -> tuple[jax.Array, jax.Array] | None:
    """Return the output, and by (batch, head, row) the logarithm of the sum of the exponentials; `None` without a
    kernel.
    """
    if not _is_asked_for(query, key, bias, dropout_p, is_causal, scale):
        return None
    try:
        output, log_sum = _kernel(query, key, value, is_causal=is_causal, scale=scale)
    except (NotImplementedError, RuntimeError, ValueError):  # how JAX says that there is none
        return None
    return output, log_sum


def gradients(
    grad: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: Any,
    dropout_p: Any,
    is_causal: bool,
    scale: Any,
    output: jax.Array,
    log_sum: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array] | None:
    """Return the gradients of query, key and value; `None` without a kernel.

    They are computed from the operands. In one program with `attention` XLA runs the forward kernel once for both.
    """
    if not _is_asked_for(query, key, bias, dropout_p, is_causal, scale):
        return None
    forward = functools.partial(_kernel, is_causal=is_causal, scale=scale)
    try:
        _, pull, _ = jax.vjp(forward, query, key, value, has_aux=True)
        found: tuple[jax.Array, jax.Array, jax.Array] = pull(grad)
    except (NotImplementedError, RuntimeError, ValueError):
        return None
    return found


def _is_asked_for(query: jax.Array, key: jax.Array, bias: Any, dropout_p: Any, is_causal: bool, scale: Any) -> bool:
    target = replica_axis.target_in_use()
    return (
        target is not None
        and target.platform == "gpu"
        and target.mesh is None
        and query.dtype in _NARROW
        and query.ndim == 4
        and bias is None
        and isinstance(dropout_p, (int, float))
        and dropout_p == 0
        and (scale is None or isinstance(scale, (int, float)))
        and (not is_causal or query.shape[2] == key.shape[2])
    )


def _kernel(
    query: jax.Array, key: jax.Array, value: jax.Array, *, is_causal: bool, scale: Any
) -> tuple[jax.Array, jax.Array]:
    masks = private.cudnn_masks
    found: tuple[jax.Array, jax.Array] = private.cudnn_attention(
        query,
        key,
        value,
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        mask_type=masks.CAUSAL if is_causal else masks.NO_MASK,
        qkv_layout="BNTH",
        return_residual=True,
    )
    return found
