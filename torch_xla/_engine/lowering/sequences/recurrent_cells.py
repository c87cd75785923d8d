"""Recurrent cells, which PyTorch calls for each step in time with the gates already multiplied out."""

import jax
import jax.numpy as jnp
import torch

from ..machinery.opmath import widened
from ..machinery.registry import lowers

aten = torch.ops.aten

Optional = jax.Array | None


def _biased(gates: jax.Array, bias: Optional) -> jax.Array:
    return widened(gates) if bias is None else widened(gates) + widened(bias)


def _or_zeros(gradient: Optional, like: jax.Array) -> jax.Array:
    return jnp.zeros_like(like) if gradient is None else widened(gradient)


@lowers(aten._thnn_fused_lstm_cell.default)
def lstm_cell(
    input_gates: jax.Array,
    hidden_gates: jax.Array,
    cx: jax.Array,
    input_bias: Optional = None,
    hidden_bias: Optional = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    enter, forget, cell, out = jnp.split(gates, 4, axis=1)
    enter, forget, cell, out = jax.nn.sigmoid(enter), jax.nn.sigmoid(forget), jnp.tanh(cell), jax.nn.sigmoid(out)
    cy = forget * widened(cx) + enter * cell
    return out * jnp.tanh(cy), cy, jnp.concatenate([enter, forget, cell, out], axis=1)


@lowers(aten._thnn_fused_lstm_cell_backward_impl.default)
def lstm_cell_backward(
    grad_hy: Optional, grad_cy: Optional, cx: jax.Array, cy: jax.Array, workspace: jax.Array, has_bias: bool
) -> tuple[jax.Array, jax.Array, Optional]:
    enter, forget, cell, out = jnp.split(widened(workspace), 4, axis=1)
    cx, shown = widened(cx), jnp.tanh(widened(cy))
    grad_hy, grad_cy = _or_zeros(grad_hy, shown), _or_zeros(grad_cy, shown)
    through_cell = grad_hy * out * (1 - shown * shown) + grad_cy
    gates = jnp.concatenate(
        [
            through_cell * cell * enter * (1 - enter),
            through_cell * cx * forget * (1 - forget),
            through_cell * enter * (1 - cell * cell),
            grad_hy * shown * out * (1 - out),
        ],
        axis=1,
    )
    return gates, through_cell * forget, jnp.sum(gates, 0) if has_bias else None


@lowers(aten._thnn_fused_gru_cell.default)
def gru_cell(
    input_gates: jax.Array,
    hidden_gates: jax.Array,
    hx: jax.Array,
    input_bias: Optional = None,
    hidden_bias: Optional = None,
) -> tuple[jax.Array, jax.Array]:
    reset_in, update_in, new_in = jnp.split(_biased(input_gates, input_bias), 3, axis=1)
    reset_hidden, update_hidden, new_hidden = jnp.split(_biased(hidden_gates, hidden_bias), 3, axis=1)
    hidden = widened(hx)
    reset = jax.nn.sigmoid(reset_in + reset_hidden)
    update = jax.nn.sigmoid(update_in + update_hidden)
    new = jnp.tanh(new_in + reset * new_hidden)
    workspace = jnp.concatenate([reset, update, new, hidden, new_hidden], axis=1)
    # PyTorch has no meta kernel from which to take the dtypes.
    return (new + update * (hidden - new)).astype(hx.dtype), workspace.astype(hx.dtype)


@lowers(aten._thnn_fused_gru_cell_backward.default)
def gru_cell_backward(
    grad_hy: jax.Array, workspace: jax.Array, has_bias: bool
) -> tuple[jax.Array, jax.Array, jax.Array, Optional, Optional]:
    reset, update, new, hidden, new_hidden = jnp.split(widened(workspace), 5, axis=1)
    gradient = widened(grad_hy)
    grad_update = gradient * (hidden - new) * update * (1 - update)
    grad_new = gradient * (1 - update) * (1 - new * new)
    grad_reset = grad_new * new_hidden * reset * (1 - reset)
    from_input = jnp.concatenate([grad_reset, grad_update, grad_new], axis=1)
    from_hidden = jnp.concatenate([grad_reset, grad_update, grad_new * reset], axis=1)
    narrow = grad_hy.dtype
    grads = from_input.astype(narrow), from_hidden.astype(narrow), (gradient * update).astype(narrow)
    if not has_bias:
        return *grads, None, None
    return *grads, jnp.sum(from_input, 0).astype(narrow), jnp.sum(from_hidden, 0).astype(narrow)
