"""Fused optimizer steps: one operation for all parameters, with the arithmetic of PyTorch's fused CPU kernels.

Numbers that belong to a whole tensor (bias corrections, step sizes) are computed in float64, for all parameters at
once. Everything else is computed in float32, or in the dtype of the parameters if that is wider.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..linear_algebra.matmul import accumulation_dtype
from ..machinery.opmath import number_as, widened
from ..machinery.registry import lowers

aten = torch.ops.aten

Arrays = list[jax.Array]
FLOAT64 = np.dtype(np.float64)


def _is_zero(number: object) -> bool:
    """Return whether a number is known to be 0: false for one that changes between steps."""
    return isinstance(number, (int, float)) and number == 0


def _per_tensor(values: jax.Array, dtype: np.dtype) -> Arrays:
    """Return the elements of a vector of float64, one for each parameter, in the dtype of the step."""
    values = values.astype(dtype)
    return [lax.index_in_dim(values, index, keepdims=False) for index in range(values.shape[0])]


def _steps(state_steps: Arrays) -> jax.Array:
    return jnp.concatenate([step.reshape(1) for step in state_steps]).astype(FLOAT64)


def _gradient(grad: jax.Array, grad_scale: jax.Array | None) -> jax.Array:
    grad = widened(grad)
    return grad if grad_scale is None else grad / number_as(grad_scale.reshape(()), grad.dtype)


def _kept(old: Arrays, new: Arrays, found_inf: jax.Array | None) -> Arrays:
    """Return `new` in the dtypes of `old`; or `old` itself, if a gradient was not finite."""
    new = [value.astype(before.dtype) for before, value in zip(old, new, strict=True)]
    if found_inf is None:
        return new
    skip = found_inf.reshape(()) == 1
    return [jnp.where(skip, before, value) for before, value in zip(old, new, strict=True)]


def _decayed(param: jax.Array, grad: jax.Array, weight_decay: object) -> jax.Array:
    """Return the gradient with a penalty on large parameters. None of 0, though the parameter be infinite."""
    if _is_zero(weight_decay):
        return grad
    factor = number_as(weight_decay, param.dtype)
    return jnp.where(factor == 0, grad, grad + param * factor)


def _decay_in_gradient(
    param: jax.Array, grad: jax.Array, lr: object, weight_decay: object
) -> tuple[jax.Array, jax.Array]:
    return param, _decayed(param, grad, weight_decay)


def _decay_in_parameter(
    param: jax.Array, grad: jax.Array, lr: object, weight_decay: object
) -> tuple[jax.Array, jax.Array]:
    return param * number_as(1 - number_as(lr, FLOAT64) * weight_decay, param.dtype), grad


def _moved_towards(start: jax.Array, end: jax.Array, weight: Any) -> jax.Array:
    """Interpolate linearly, from the end that is nearer.

    Each end has a product of its own: LLVM would compute a common one before it chooses, and round it there, where it
    joins product and sum if the weight is known.
    """
    difference = end - start
    from_start = start + number_as(weight, start.dtype) * difference
    from_end = end + number_as(weight - 1, start.dtype) * difference
    return jnp.where(weight < 0.5, from_start, from_end)


def _bias_corrections(beta: object, steps: jax.Array) -> jax.Array:
    # 1 - beta**step, without the cancellation.
    return -jnp.expm1(steps * jnp.log(jnp.asarray(beta, FLOAT64)))


def _updated(
    update: Callable[..., tuple[jax.Array, ...]],
    self: Arrays,
    grads: Arrays,
    states: tuple[Arrays, ...],
    maximize: bool,
    grad_scale: jax.Array | None,
    found_inf: jax.Array | None,
) -> tuple[Arrays, ...]:
    """Update each parameter, and return the parameters, the gradients without their scale, and the states.

    `update` takes a parameter's index, the parameter and its gradient, both widened, and its states. It returns the new
    parameter and the new states.
    """
    gradients: Arrays = []
    rows: list[tuple[jax.Array, ...]] = []
    for index, (param, grad) in enumerate(zip(self, grads, strict=True)):
        param, grad = widened(param), _gradient(grad, grad_scale)
        gradients.append(grad)
        rows.append(update(index, param, -grad if maximize else grad, *(state[index] for state in states)))
    params, *others = (_kept(old, [row[place] for row in rows], found_inf) for place, old in enumerate((self, *states)))
    return params, grads if grad_scale is None else _kept(grads, gradients, found_inf), *others


def _adam(
    decay: Callable[[jax.Array, jax.Array, Any, Any], tuple[jax.Array, jax.Array]],
) -> Callable[..., tuple[Arrays, ...]]:
    def step(
        self: Arrays,
        grads: Arrays,
        exp_avgs: Arrays,
        exp_avg_sqs: Arrays,
        max_exp_avg_sqs: Arrays,
        state_steps: Arrays,
        *,
        lr: Any,
        beta1: Any,
        beta2: Any,
        weight_decay: Any,
        eps: Any,
        amsgrad: bool,
        maximize: bool,
        grad_scale: jax.Array | None = None,
        found_inf: jax.Array | None = None,
    ) -> tuple[Arrays, ...]:
        dtype = accumulation_dtype(self[0].dtype)
        steps = _steps(state_steps)
        step_sizes = _per_tensor(number_as(lr, FLOAT64) / _bias_corrections(beta1, steps), dtype)
        # XLA multiplies by reciprocals anyway; here they cost one small loop, there one for each parameter.
        factors = _per_tensor(1 / jnp.sqrt(_bias_corrections(beta2, steps)), dtype)
        keep_square, take_square = number_as(beta2, dtype), number_as(1 - beta2, dtype)

        def update(
            index: int, param: jax.Array, grad: jax.Array, average: jax.Array, square: jax.Array, *largest: jax.Array
        ) -> tuple[jax.Array, ...]:
            if not _is_zero(weight_decay):
                param, grad = decay(param, grad, lr, weight_decay)
            average = _moved_towards(widened(average), grad, 1 - beta1)
            square = keep_square * widened(square) + take_square * grad * grad
            largest = tuple(jnp.maximum(widened(each), square) for each in largest)
            (under_root,) = largest or (square,)
            denominator = jnp.sqrt(under_root) * factors[index] + number_as(eps, dtype)
            return param - step_sizes[index] * average / denominator, average, square, *largest

        states = (exp_avgs, exp_avg_sqs, max_exp_avg_sqs) if amsgrad else (exp_avgs, exp_avg_sqs)
        updated = _updated(update, self, grads, states, maximize, grad_scale, found_inf)
        return updated if amsgrad else (*updated, max_exp_avg_sqs)

    return step


lowers(aten._fused_adam.default, aten._fused_adam.tensor_lr, separable=True)(_adam(_decay_in_gradient))
lowers(aten._fused_adamw.default, aten._fused_adamw.tensor_lr, separable=True)(_adam(_decay_in_parameter))


@lowers(aten._fused_sgd.default, aten._fused_sgd.tensor_lr, separable=True)
def fused_sgd(
    self: Arrays,
    grads: Arrays,
    momentum_buffer_list: Arrays,
    *,
    weight_decay: object,
    momentum: object,
    lr: object,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: jax.Array | None = None,
    found_inf: jax.Array | None = None,
) -> tuple[Arrays, ...]:
    def update(index: int, param: jax.Array, grad: jax.Array, *buffers: jax.Array) -> tuple[jax.Array, ...]:
        dtype = param.dtype
        grad = _decayed(param, grad, weight_decay)
        if buffers:
            buffer = grad
            if not is_first_step:
                kept = widened(buffers[0]) * number_as(momentum, dtype)
                buffer = kept + grad * number_as(1 - dampening, dtype)
            grad = grad + buffer * number_as(momentum, dtype) if nesterov else buffer
            buffers = (buffer,)
        return param - grad * number_as(lr, dtype), *buffers

    # PyTorch gives buffers exactly if there is a momentum; before the first step they hold nothing.
    states = (momentum_buffer_list,) if momentum_buffer_list else ()
    updated = _updated(update, self, grads, states, maximize, grad_scale, found_inf)
    return updated if states else (*updated, momentum_buffer_list)


@lowers(aten._fused_adagrad.tensor_lr, separable=True)
def fused_adagrad_tensor_lr(
    self: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    state_steps: Arrays,
    *,
    lr: Any,
    lr_decay: Any,
    weight_decay: object,
    eps: object,
    maximize: bool,
    grad_scale: jax.Array | None = None,
    found_inf: jax.Array | None = None,
) -> tuple[Arrays, ...]:
    dtype = accumulation_dtype(self[0].dtype)
    rates = _per_tensor(number_as(lr, FLOAT64) / (1 + (_steps(state_steps) - 1) * lr_decay), dtype)

    def update(index: int, param: jax.Array, grad: jax.Array, total: jax.Array) -> tuple[jax.Array, ...]:
        grad = _decayed(param, grad, weight_decay)
        total = widened(total) + grad * grad
        return param - rates[index] * grad / (jnp.sqrt(total) + number_as(eps, dtype)), total

    return _updated(update, self, grads, (state_sums,), maximize, grad_scale, found_inf)


# The schema of the overload with a number also returns the steps, which it does not change.
@lowers(aten._fused_adagrad.default, separable=True)
def fused_adagrad(
    self: Arrays, grads: Arrays, state_sums: Arrays, state_steps: Arrays, **options: Any
) -> tuple[Arrays, ...]:
    return *fused_adagrad_tensor_lr(self, grads, state_sums, state_steps, **options), state_steps
