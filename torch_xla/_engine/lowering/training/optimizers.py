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
    """Interpolate linearly, from the end that is nearer."""
    near_start = weight < 0.5
    if isinstance(near_start, bool):
        base, coefficient = (start, weight) if near_start else (end, weight - 1)
    else:
        base, coefficient = jnp.where(near_start, start, end), jnp.where(near_start, weight, weight - 1)
    return base + number_as(coefficient, start.dtype) * (end - start)


def _bias_corrections(beta: object, steps: jax.Array) -> jax.Array:
    # 1 - beta**step, without the cancellation.
    return -jnp.expm1(steps * jnp.log(jnp.asarray(beta, FLOAT64)))


def _adam(
    decay: Callable[[jax.Array, jax.Array, Any, Any], tuple[jax.Array, jax.Array]],
) -> Callable[..., tuple[Arrays, Arrays, Arrays, Arrays, Arrays]]:
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
    ) -> tuple[Arrays, Arrays, Arrays, Arrays, Arrays]:
        dtype = accumulation_dtype(self[0].dtype)
        steps = _steps(state_steps)
        step_sizes = _per_tensor(number_as(lr, FLOAT64) / _bias_corrections(beta1, steps), dtype)
        # XLA multiplies by reciprocals anyway; here they cost one small loop, there one for each parameter.
        factors = _per_tensor(1 / jnp.sqrt(_bias_corrections(beta2, steps)), dtype)
        keep_square, take_square = number_as(beta2, dtype), number_as(1 - beta2, dtype)
        params: Arrays = []
        gradients: Arrays = []
        averages: Arrays = []
        squares: Arrays = []
        maxima: Arrays = []
        for index in range(len(self)):
            param = widened(self[index])
            gradient = grad = _gradient(grads[index], grad_scale)
            if maximize:
                grad = -grad
            if not _is_zero(weight_decay):
                param, grad = decay(param, grad, lr, weight_decay)
            average = _moved_towards(widened(exp_avgs[index]), grad, 1 - beta1)
            square = keep_square * widened(exp_avg_sqs[index]) + take_square * grad * grad
            largest = square
            if amsgrad:
                largest = jnp.maximum(widened(max_exp_avg_sqs[index]), square)
                maxima.append(largest)
            denominator = jnp.sqrt(largest) * factors[index] + number_as(eps, dtype)
            params.append(param - step_sizes[index] * average / denominator)
            gradients.append(gradient)
            averages.append(average)
            squares.append(square)
        return (
            _kept(self, params, found_inf),
            grads if grad_scale is None else _kept(grads, gradients, found_inf),
            _kept(exp_avgs, averages, found_inf),
            _kept(exp_avg_sqs, squares, found_inf),
            _kept(max_exp_avg_sqs, maxima, found_inf) if amsgrad else max_exp_avg_sqs,
        )

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
) -> tuple[Arrays, Arrays, Arrays]:
    params: Arrays = []
    gradients: Arrays = []
    buffers: Arrays = []
    for index in range(len(self)):
        param = widened(self[index])
        gradient = grad = _gradient(grads[index], grad_scale)
        dtype = param.dtype
        if maximize:
            grad = -grad
        grad = _decayed(param, grad, weight_decay)
        # PyTorch gives buffers exactly if there is a momentum; before the first step they hold nothing.
        if momentum_buffer_list:
            buffer = grad
            if not is_first_step:
                kept = widened(momentum_buffer_list[index]) * number_as(momentum, dtype)
                buffer = kept + grad * number_as(1 - dampening, dtype)
            grad = grad + buffer * number_as(momentum, dtype) if nesterov else buffer
            buffers.append(buffer)
        params.append(param - grad * number_as(lr, dtype))
        gradients.append(gradient)
    return (
        _kept(self, params, found_inf),
        grads if grad_scale is None else _kept(grads, gradients, found_inf),
        _kept(momentum_buffer_list, buffers, found_inf),
    )


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
) -> tuple[Arrays, Arrays, Arrays]:
    dtype = accumulation_dtype(self[0].dtype)
    rates = _per_tensor(number_as(lr, FLOAT64) / (1 + (_steps(state_steps) - 1) * lr_decay), dtype)
    params: Arrays = []
    gradients: Arrays = []
    sums: Arrays = []
    for index in range(len(self)):
        param = widened(self[index])
        gradient = grad = _gradient(grads[index], grad_scale)
        if maximize:
            grad = -grad
        grad = _decayed(param, grad, weight_decay)
        total = widened(state_sums[index]) + grad * grad
        params.append(param - rates[index] * grad / (jnp.sqrt(total) + number_as(eps, dtype)))
        gradients.append(gradient)
        sums.append(total)
    return (
        _kept(self, params, found_inf),
        grads if grad_scale is None else _kept(grads, gradients, found_inf),
        _kept(state_sums, sums, found_inf),
    )


# The schema of the overload with a number also returns the steps, which it does not change.
@lowers(aten._fused_adagrad.default, separable=True)
def fused_adagrad(
    self: Arrays, grads: Arrays, state_sums: Arrays, state_steps: Arrays, **options: object
) -> tuple[Arrays, Arrays, Arrays, Arrays]:
    return *fused_adagrad_tensor_lr(self, grads, state_sums, state_steps, **options), state_steps
