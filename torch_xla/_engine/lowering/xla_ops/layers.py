"""Layers as operators of `torch.ops.xla`, whose backward pass is an operator too."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from ..machinery.registry import lowers, rule_of
from ..machinery.xla_op_schemas import define, differentiate

aten = torch.ops.aten

LINEAR = define(
    "einsum_linear_forward(Tensor input, Tensor weight, Tensor? bias) -> Tensor",
    lambda x, weight, bias: x.new_empty(*x.shape[:-1], weight.shape[0]),
)
LINEAR_BACKWARD = define(
    "einsum_linear_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor? bias, "
    "bool needs_input_grad_input, bool needs_input_grad_weight, bool needs_input_grad_bias) "
    "-> (Tensor, Tensor, Tensor)",
    lambda grad, x, weight, bias, *_: (torch.empty_like(x), torch.empty_like(weight), x.new_empty(weight.shape[0])),
)
POOL = define(
    "max_pool2d_forward(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, "
    "bool ceil_mode=False) -> Tensor",
    lambda x, *args, **kwargs: aten.max_pool2d_with_indices(x, *args, **kwargs)[0],
)
POOL_BACKWARD = define(
    "max_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, "
    "bool ceil_mode=False) -> Tensor",
    lambda grad, x, *_, **__: torch.empty_like(x),
)


@lowers(LINEAR)
def einsum_linear_forward(x: jax.Array, weight: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Return x weightᵀ + bias, as one product over the last dimension however many there are in front."""
    found = jnp.einsum("...n,mn->...m", x, weight, preferred_element_type=_summed_in(x.dtype))
    return (found if bias is None else found + bias).astype(x.dtype)


@lowers(LINEAR_BACKWARD)
def einsum_linear_backward(
    grad_output: jax.Array,
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    of_input: bool,
    of_weight: bool,
    of_bias: bool,
) -> list[jax.Array]:
    """Return the gradients by input, weight and bias; zeros for one that is not needed."""
    wide = _summed_in(x.dtype)
    by_input = jnp.einsum("...m,mn->...n", grad_output, weight, preferred_element_type=wide)
    by_weight = jnp.einsum("...m,...n->mn", grad_output, x, preferred_element_type=wide)
    by_bias = grad_output.astype(wide).sum(range(grad_output.ndim - 1))
    wanted = (of_input, of_weight, of_bias and bias is not None)
    found = (by_input, by_weight, by_bias)
    return [(each if want else jnp.zeros_like(each)).astype(x.dtype) for each, want in zip(found, wanted, strict=True)]


def _summed_in(dtype: np.dtype) -> np.dtype:
    return np.promote_types(dtype, np.float32) if jnp.issubdtype(dtype, np.floating) else dtype


def _pool(
    x: jax.Array, size: object, stride: object, padding: object, dilation: object, ceil_mode: bool
) -> tuple[jax.Array, ...]:
    rule = rule_of(aten.max_pool2d_with_indices.default)
    assert rule is not None
    return rule.lower(x, size, stride, padding, dilation, ceil_mode)


@lowers(POOL)
def max_pool2d_forward(
    x: jax.Array, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: object = (0, 0),
    dilation: object = (1, 1), ceil_mode: bool = False,
) -> jax.Array:  # fmt: skip
    """Return the largest element of each window."""
    found: jax.Array = _pool(x, kernel_size, stride, padding, dilation, ceil_mode)[0]
    return found


@lowers(POOL_BACKWARD)
def max_pool2d_backward(
    grad_output: jax.Array, x: jax.Array, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: object = (0, 0),
    ceil_mode: bool = False,
) -> jax.Array:  # fmt: skip
    """Pass the gradient to the largest element of each window."""
    indices = _pool(x, kernel_size, stride, padding, (1, 1), ceil_mode)[1]
    rule = rule_of(aten.max_pool2d_with_indices_backward.default)
    assert rule is not None
    found: jax.Array = rule.lower(grad_output, x, kernel_size, stride, padding, (1, 1), ceil_mode, indices)
    return found


def _gradients_of_linear(inputs: Mapping[str, object], grad: Tensor) -> dict[str, torch.Tensor]:
    x, weight, bias = inputs["input"], inputs["weight"], inputs["bias"]
    found = torch.ops.xla.einsum_linear_backward(grad, x, weight, bias, True, True, bias is not None)
    return {"input": found[0], "weight": found[1], "bias": None if bias is None else found[2]}


def _gradients_of_pool(inputs: dict[str, torch.Tensor], grad: Tensor) -> dict[str, torch.Tensor]:
    if list(inputs["dilation"]) != [1] * len(inputs["dilation"]):
        raise NotImplementedError(
            "max_pool2d_backward of torch.ops.xla has no dilation; use torch.nn.functional.max_pool2d"
        )
    settings = [inputs[name] for name in ("kernel_size", "stride", "padding", "ceil_mode")]
    return {"self": torch.ops.xla.max_pool2d_backward(grad, inputs["self"], *settings)}


differentiate(LINEAR, _gradients_of_linear)
differentiate(POOL, _gradients_of_pool)
