"""Attention by cuDNN's fused kernel, which JAX provides for NVIDIA GPUs.

It is asked for in half precision, without a mask and dropout, where one device computes alone. JAX says whether cuDNN
has a kernel for the sizes and the GPU; where it has none, the scores are computed.
"""

from dataclasses import replace

import jax
import numpy as np

from ...compat.names import jax as private
from ..machinery import replica_axis
from .fused_attention import AttentionCall

_NARROW = (np.dtype("bfloat16"), np.dtype(np.float16))


def attention(call: AttentionCall) -> tuple[jax.Array, jax.Array] | None:
    """Return the output, and by (batch, head, row) the logarithm of the sum of the exponentials; `None` without a
    kernel.
    """
    if not _is_asked_for(call):
        return None
    try:
        return _kernel(call)
    except (NotImplementedError, RuntimeError, ValueError):  # how JAX says that there is none
        return None


def gradients(
    call: AttentionCall, grad: jax.Array, output: jax.Array, log_sum: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array] | None:
    """Return the gradients of query, key and value; `None` without a kernel.

    They are computed from the operands. In one program with `attention` XLA runs the forward kernel once for both.
    """
    if not _is_asked_for(call):
        return None

    def forward(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _kernel(replace(call, query=query, key=key, value=value))

    try:
        _, pull, _ = jax.vjp(forward, call.query, call.key, call.value, has_aux=True)
        found: tuple[jax.Array, jax.Array, jax.Array] = pull(grad)
    except (NotImplementedError, RuntimeError, ValueError):
        return None
    return found


def _is_asked_for(call: AttentionCall) -> bool:
    target = replica_axis.target_in_use()
    return (
        target is not None
        and target.platform == "gpu"
        and target.mesh is None
        and call.query.dtype in _NARROW
        and call.query.ndim == 4
        and call.is_plain
        and (not call.is_causal or call.query.shape[2] == call.key.shape[2])
    )


def _kernel(call: AttentionCall) -> tuple[jax.Array, jax.Array]:
    masks = private.cudnn_masks
    found: tuple[jax.Array, jax.Array] = private.cudnn_attention(
        call.query,
        call.key,
        call.value,
        scale=call.factor,
        mask_type=masks.CAUSAL if call.is_causal else masks.NO_MASK,
        qkv_layout="BNTH",
        return_residual=True,
    )
    return found
