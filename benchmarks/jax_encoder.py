"""The `encoder` workload's training step written by hand in JAX: what the same step costs without any recording.

It starts from the PyTorch model's weights and does the same arithmetic (dropout included, with JAX's own random
bits), so with dropout 0 its losses are those of PyTorch: `tests/test_benchmarks.py` compares them.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn

HEADS = 4
Parameters = dict[str, jax.Array]


def parameters_of(model: nn.Module) -> Parameters:
    """The weights under PyTorch's names, copied: the step donates them."""
    return {name: jnp.array(value.detach().numpy(), copy=True) for name, value in model.state_dict().items()}


def linear(p: Parameters, name: str, x: jax.Array) -> jax.Array:
    return x @ p[f"{name}weight"].T + p[f"{name}bias"]


def layer_norm(p: Parameters, name: str, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return centred * scale * p[f"{name}weight"] + p[f"{name}bias"]


def drop(key: jax.Array, x: jax.Array, rate: float) -> jax.Array:
    if rate == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def layer(p: Parameters, name: str, x: jax.Array, key: jax.Array, rate: float) -> jax.Array:
    batch, length, width = x.shape
    keys = jax.random.split(key, 4)
    qkv = linear(p, f"{name}self_attn.in_proj_", x).reshape(batch, length, 3, HEADS, width // HEADS)
    query, keys_of, value = qkv.transpose(2, 0, 3, 1, 4)
    scores = query @ keys_of.swapaxes(-1, -2) * (width // HEADS) ** -0.5
    seen = drop(keys[0], jax.nn.softmax(scores), rate) @ value
    attention = linear(p, f"{name}self_attn.out_proj.", seen.transpose(0, 2, 1, 3).reshape(x.shape))
    x = layer_norm(p, f"{name}norm1.", x + drop(keys[1], attention, rate))
    hidden = drop(keys[2], jax.nn.relu(linear(p, f"{name}linear1.", x)), rate)
    return layer_norm(p, f"{name}norm2.", x + drop(keys[3], linear(p, f"{name}linear2.", hidden), rate))


def loss_of(p: Parameters, x: jax.Array, labels: jax.Array, key: jax.Array, layers: int, rate: float) -> jax.Array:
    for index, layer_key in enumerate(jax.random.split(key, layers)):
        x = layer(p, f"encoder.layers.{index}.", x, layer_key, rate)
    log_probabilities = jax.nn.log_softmax(linear(p, "classifier.", x.mean(1)))
    return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()


@partial(jax.jit, static_argnames=("layers", "rate"), donate_argnames=("state",))
def step(state: dict[str, Any], x: jax.Array, labels: jax.Array, layers: int, rate: float) -> tuple[Any, jax.Array]:
    """Forward, backward and AdamW as `torch.optim.AdamW(lr=1e-3)` does it."""
    key, used = jax.random.split(state["key"])
    loss, gradients = jax.value_and_grad(loss_of)(state["parameters"], x, labels, used, layers, rate)
    count = state["count"] + 1
    lr, decay, beta1, beta2, eps = 1e-3, 1e-2, 0.9, 0.999, 1e-8
    first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state["second"], gradients)
    correction1, correction2 = 1 - beta1**count, jnp.sqrt(1 - beta2**count)
    parameters = jax.tree.map(
        lambda p, m, v: p * (1 - lr * decay) - lr / correction1 * m / (jnp.sqrt(v) / correction2 + eps),
        state["parameters"],
        first,
        second,
    )
    return {"parameters": parameters, "first": first, "second": second, "count": count, "key": key}, loss


class JaxEncoder:
    """Trains the encoder that `model` is, on one batch, step after step."""

    def __init__(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], layers: int, dropout: float) -> None:
        parameters = parameters_of(model)
        self.state = {
            "parameters": parameters,
            "first": jax.tree.map(jnp.zeros_like, parameters),
            "second": jax.tree.map(jnp.zeros_like, parameters),
            "count": jnp.zeros((), jnp.float32),
            "key": jax.random.key(0, impl="rbg"),
        }
        self.x = jnp.asarray(batch[0].numpy())
        self.labels = jnp.asarray(batch[1].numpy().astype("int32"))
        self.layers = layers
        self.dropout = dropout

    def step(self) -> jax.Array:
        self.state, loss = step(self.state, self.x, self.labels, self.layers, self.dropout)
        return loss
