"""Attention by JAX's flash kernel for TPUs, which keeps one block of scores at a time in the chip's own memory.

It is asked for without a mask and dropout, where one device computes alone and the scores are many. Lengths that are no
multiple of its blocks are padded; a causal mask or segments keep the padding out.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...compat.names import jax_flash_attention as kernels
from ..machinery import replica_axis
from ..machinery.product_precision import precision_of
from .fused_attention import AttentionCall

# The kernel's smallest block. Shorter sequences have few scores, which XLA computes as well.
_SIDE = 128
_LEAST_COLUMNS = 512
_MOST_FEATURES = 256

# The segment of each row and column, by batch: numbers from 0 on. A row sees the columns of its own segment alone.
Segments = tuple[jax.Array, jax.Array]


def attention(call: AttentionCall) -> tuple[jax.Array, jax.Array] | None:
    """Return the output, and by (batch, head, row) the logarithm of the sum of the exponentials; `None` where the
    kernel does not apply.
    """
    return forward(call) if takes(call) else None


def gradients(
    call: AttentionCall, grad: jax.Array, output: jax.Array, log_sum: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array] | None:
    """Return those of query, key and value, from the results of `attention`."""
    return backward(call, grad, output, log_sum) if takes(call) else None


def takes(call: AttentionCall) -> bool:
    """Return whether the kernel exists here and computes this attention."""
    query, key, value = call.query, call.key, call.value
    target = replica_axis.target_in_use()
    return (
        target is not None
        and target.platform == "tpu"
        and target.mesh is None
        and query.dtype in (np.dtype("bfloat16"), np.dtype(np.float32))
        and query.ndim == 4
        and query.size > 0
        and key.shape[0] == query.shape[0] == value.shape[0]
        and key.shape[1] == value.shape[1]
        and query.shape[1] % key.shape[1] == 0
        and query.shape[3] == key.shape[3] == value.shape[3] <= _MOST_FEATURES
        and key.shape[2] >= _LEAST_COLUMNS
        and query.shape[2] >= _SIDE
        and call.is_plain
    )


def forward(call: AttentionCall, segments: Segments | None = None) -> tuple[jax.Array, jax.Array]:
    """Return the output and the logarithms, by the kernel. What it gives for a row that sees nothing has no meaning."""
    rows = call.query.shape[2]
    segments = _segments(call) if segments is None else _padded_segments(segments)
    query, key, value = _prepared(call)
    with jax.enable_x64(False), precision_of((query,)):
        output, total, largest = kernels.flash_attention(
            query, key, value, segments, call.is_causal, float(call.factor)
        )
    log_sum = largest + jnp.log(total)
    return output[:, :, :rows], log_sum[:, :, :rows]


def backward(
    call: AttentionCall, grad: jax.Array, output: jax.Array, log_sum: jax.Array, segments: Segments | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients of query, key and value, by the kernels. The logarithms must be finite."""
    rows, columns = call.query.shape[2], call.key.shape[2]
    segments = _segments(call) if segments is None else _padded_segments(segments)
    operands = _prepared(call)
    grad, output = (_padded(each, 2) for each in (grad, output))
    # With the logarithm of the sum for the largest score the sum is 1.
    largest = _padded(log_sum.astype(np.float32), 2)
    residuals = output, jnp.ones_like(largest), largest
    with jax.enable_x64(False), precision_of(operands[:1]):
        grad_query, grad_key, grad_value = kernels.flash_attention_gradients(
            grad, *operands, segments, call.is_causal, float(call.factor), residuals
        )
    return (
        grad_query[:, :, :rows],
        _of_shared_heads(grad_key[:, :, :columns], call.key.shape),
        _of_shared_heads(grad_value[:, :, :columns], call.value.shape),
    )


def _prepared(call: AttentionCall) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the operands with padded lengths, and a head of keys and values for each of the query."""
    groups = call.query.shape[1] // call.key.shape[1]
    key, value = (jnp.repeat(each, groups, axis=1) if groups > 1 else each for each in (call.key, call.value))
    return _padded(call.query, 2), _padded(key, 2), _padded(value, 2)


def _of_shared_heads(grad: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return a gradient of heads that were repeated as one of those that they were repeated from."""
    groups = grad.shape[1] // shape[1]
    if groups == 1:
        return grad
    parts = grad.reshape(*shape[:2], groups, *shape[2:])
    return jnp.sum(parts, 2, dtype=np.float32)


def _padded_segments(segments: Segments) -> Segments:
    rows, columns = segments
    return _padded(rows, 1, -1), _padded(columns, 1, -2)


def _segments(call: AttentionCall) -> Segments | None:
    """Return segments that part the padding from the rest; none where there is none, or a causal mask hides it."""
    batch, rows, columns = call.query.shape[0], call.query.shape[2], call.key.shape[2]
    if columns % _SIDE == 0 or (call.is_causal and rows <= columns):
        return None
    own = lax.broadcasted_iota(np.int32, (batch, columns + -columns % _SIDE), 1) < columns
    return jnp.ones((batch, rows + -rows % _SIDE), np.int32), own.astype(np.int32)


def _padded(array: jax.Array, axis: int, fill: int = 0) -> jax.Array:
    missing = -array.shape[axis] % _SIDE
    widths = [(0, missing if each == axis else 0, 0) for each in range(array.ndim)]
    return lax.pad(array, jnp.asarray(fill, array.dtype), widths) if missing else array
