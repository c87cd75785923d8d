"""The GPT-2-like decoder by hand in JAX: one jitted function a token, which is given its cache to write in."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.decoders import GptDecoder
from benchmarks.jax_models import Weights, attention, layer_norm, linear
from benchmarks.jax_steps import DTYPES, cast, weights_of

HEADS = 6


@partial(jax.jit, donate_argnames=("state",))
def decode(p: Weights, state: dict[str, Any]) -> tuple[dict[str, Any], jax.Array]:
    """One more token of each text."""
    token, position = state["token"], state["position"]
    batch = len(token)
    x = p["model.embedding.weight"][token] + p["model.position.weight"][position]
    seen = jnp.arange(state["caches"][0][0].shape[2]) <= position
    caches = []
    for index, (keys, values) in enumerate(state["caches"]):
        name = f"model.blocks.{index}."
        qkv = linear(p, f"{name}qkv.", layer_norm(p, f"{name}attention_norm.", x)).reshape(batch, 1, 3, HEADS, -1)
        query, key, value = qkv.transpose(2, 0, 3, 1, 4)
        keys, values = (
            lax.dynamic_update_slice(cache, new, (0, 0, position, 0)) for cache, new in ((keys, key), (values, value))
        )
        caches.append((keys, values))
        mixed = attention(query, keys, values, seen)
        x = x + linear(p, f"{name}attention_out.", mixed.transpose(0, 2, 1, 3).reshape(x.shape))
        hidden = jax.nn.gelu(linear(p, f"{name}mlp_in.", layer_norm(p, f"{name}mlp_norm.", x)), approximate=True)
        x = x + linear(p, f"{name}mlp_out.", hidden)
    logits = layer_norm(p, "model.norm.", x)[:, -1] @ p["model.embedding.weight"].T
    token = logits.argmax(-1, keepdims=True).astype(jnp.int32)
    return {"token": token, "position": position + 1, "caches": caches}, token


class JaxDecoder:
    """Decodes with the weights of `model`."""

    def __init__(self, model: GptDecoder, dtype: str = "float32") -> None:
        named = weights_of(model)
        self.weights = cast({name: value for name, value in named.items() if "model." in name}, DTYPES[dtype])
        self.shapes = [cache.keys.shape for cache in model.caches]
        self.batch = len(model.token)
        self.dtype = DTYPES[dtype]
        self.restart()

    def restart(self) -> None:
        """Begins a new text."""
        caches = [(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype)) for shape in self.shapes]
        token = jnp.zeros((self.batch, 1), jnp.int32)
        self.state: dict[str, Any] = {"token": token, "position": jnp.zeros((), jnp.int32), "caches": caches}

    def step(self) -> jax.Array:
        self.state, token = decode(self.weights, self.state)
        return token
