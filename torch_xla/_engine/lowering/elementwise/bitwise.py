"""Bitwise and logical operations, and shifts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...compat.names.torch import OpOverload
from ..machinery.opmath import on_operands
from ..machinery.registry import Promotion, lowers

aten = torch.ops.aten


def _shift_left(self: jax.Array, other: jax.Array) -> jax.Array:
    # An amount outside of the width shifts every bit out, a negative one too.
    return lax.shift_left(*jnp.broadcast_arrays(self, other))


def _shift_right(self: jax.Array, other: jax.Array) -> jax.Array:
    shift = lax.shift_right_arithmetic if jnp.issubdtype(self.dtype, jnp.signedinteger) else lax.shift_right_logical
    return shift(*jnp.broadcast_arrays(self, other))


COMMON: dict[tuple[OpOverload, ...], Callable[..., jax.Array]] = {
    (aten.bitwise_and.Tensor, aten.bitwise_and.Scalar, aten.bitwise_and.Scalar_Tensor): jnp.bitwise_and,
    (aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, aten.bitwise_or.Scalar_Tensor): jnp.bitwise_or,
    (aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar, aten.bitwise_xor.Scalar_Tensor): jnp.bitwise_xor,
    (
        aten.bitwise_left_shift.Tensor,
        aten.bitwise_left_shift.Tensor_Scalar,
        aten.bitwise_left_shift.Scalar_Tensor,
        aten.__lshift__.Tensor,
        aten.__lshift__.Scalar,
    ): _shift_left,
    (
        aten.bitwise_right_shift.Tensor,
        aten.bitwise_right_shift.Tensor_Scalar,
        aten.bitwise_right_shift.Scalar_Tensor,
        aten.__rshift__.Tensor,
        aten.__rshift__.Scalar,
    ): _shift_right,
}
for ops, function in COMMON.items():
    lowers(*ops, promotion=Promotion.COMMON)(on_operands(function))

lowers(aten.bitwise_not.default)(jnp.bitwise_not)


def _truth(array: jax.Array) -> jax.Array:
    return array if array.dtype == np.bool_ else array != 0


def _of_truths(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda *operands: function(*map(_truth, operands))


LOGICAL: dict[OpOverload, Callable[..., jax.Array]] = {
    aten.logical_and.default: jnp.logical_and,
    aten.logical_not.default: jnp.logical_not,
    aten.logical_or.default: jnp.logical_or,
    aten.logical_xor.default: jnp.logical_xor,
}
for op, function in LOGICAL.items():
    lowers(op)(_of_truths(function))
