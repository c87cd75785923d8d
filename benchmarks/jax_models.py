"""The benchmarked models written by hand in JAX: what the same step costs without any recording.

Each is a function of the PyTorch model's weights under their PyTorch names, and does the same arithmetic (dropout
included, with JAX's own random bits): with dropout 0 losses are those of PyTorch, which `tests/test_benchmarks.py`
compares.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as on_tpu

Weights = dict[str, jax.Array]
# Takes the weights, the inputs, a key for dropout (none: as in evaluation) and its rate; gives the logits, one row for
# each label, and the weights that a step in training replaces (running statistics).
Forward = Callable[[Weights, jax.Array, jax.Array | None, float], tuple[jax.Array, Weights]]


def linear(p: Weights, name: str, x: jax.Array) -> jax.Array:
    weight = p[f"{name}weight"]
    out = x.astype(weight.dtype) @ weight.T
    return out + p[f"{name}bias"] if f"{name}bias" in p else out


def layer_norm(p: Weights, name: str, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return normed.astype(x.dtype) * p[f"{name}weight"] + p[f"{name}bias"]


def rms_norm(p: Weights, name: str, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + jnp.finfo(x.dtype).eps)
    return normed.astype(x.dtype) * p[f"{name}weight"]


def split(key: jax.Array | None, count: int) -> list[Any]:
    """Split a key into `count` keys; without a key, return `None` for each."""
    return [None] * count if key is None else list(jax.random.split(key, count))


def drop(key: jax.Array | None, x: jax.Array, rate: float) -> jax.Array:
    if rate == 0 or key is None:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


CAUSAL = "causal"
# "tpu" while a program is compiled for one TPU that is not here.
PLATFORM: ContextVar[str] = ContextVar("PLATFORM", default="")


def flash(query: jax.Array, keys: jax.Array, value: jax.Array, is_causal: bool) -> jax.Array:
    """Attention by JAX's kernel for TPUs, in blocks of 512, which cost less than its own choice of 128."""
    blocks = on_tpu.BlockSizes(512, 512, 512, 1, 512, 512, 512, 512, 512, 512, 512)
    return on_tpu.flash_attention(
        query, keys, value, causal=is_causal, sm_scale=query.shape[-1] ** -0.5, block_sizes=blocks
    )


def attention(
    query: jax.Array, keys: jax.Array, value: jax.Array, seen: Any, key: jax.Array | None = None, rate: float = 0.0
) -> jax.Array:
    """Attention of heads in the second dimension; `seen` masks the scores, and the weights are dropped at `rate`."""
    query, keys = query.astype(value.dtype), keys.astype(value.dtype)
    of_kernel = seen is None or seen is CAUSAL
    if of_kernel and rate == 0 and query.dtype == jnp.bfloat16 and jax.default_backend() == "gpu":
        by_row = (each.swapaxes(1, 2) for each in (query, keys, value))
        return jax.nn.dot_product_attention(*by_row, is_causal=seen is CAUSAL, implementation="cudnn").swapaxes(1, 2)
    if of_kernel and rate == 0 and PLATFORM.get() == "tpu" and query.shape[-2] % 512 == 0:
        return flash(query, keys, value, seen is CAUSAL)
    scores = (query @ keys.swapaxes(-1, -2)).astype(jnp.float32) * query.shape[-1] ** -0.5
    if seen is CAUSAL:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if seen is not None:
        scores = jnp.where(seen, scores, -jnp.inf)
    return drop(key, jax.nn.softmax(scores).astype(query.dtype), rate) @ value


def encoder_layer(
    p: Weights,
    name: str,
    x: jax.Array,
    key: jax.Array | None,
    rate: float,
    heads: int,
    activation: Any,
    norm_first: bool,
) -> jax.Array:
    """As `nn.TransformerEncoderLayer` does it."""
    batch, length, width = x.shape
    keys = split(key, 4)

    def attend(x: jax.Array) -> jax.Array:
        qkv = linear(p, f"{name}self_attn.in_proj_", x).reshape(batch, length, 3, heads, width // heads)
        query, keys_of, value = qkv.transpose(2, 0, 3, 1, 4)
        seen = attention(query, keys_of, value, None, keys[0], rate)
        out = linear(p, f"{name}self_attn.out_proj.", seen.transpose(0, 2, 1, 3).reshape(x.shape))
        return drop(keys[1], out, rate)

    def feed(x: jax.Array) -> jax.Array:
        hidden = drop(keys[2], activation(linear(p, f"{name}linear1.", x)), rate)
        return drop(keys[3], linear(p, f"{name}linear2.", hidden), rate)

    if norm_first:
        x = x + attend(layer_norm(p, f"{name}norm1.", x))
        return x + feed(layer_norm(p, f"{name}norm2.", x))
    x = layer_norm(p, f"{name}norm1.", x + attend(x))
    return layer_norm(p, f"{name}norm2.", x + feed(x))


def layers_of(p: Weights, prefix: str) -> int:
    """How many numbered layers there are below `prefix`."""
    return 1 + max(int(name[len(prefix) :].split(".")[0]) for name in p if name.startswith(prefix))


def gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def mlp(p: Weights, x: jax.Array, key: jax.Array | None, rate: float) -> tuple[jax.Array, Weights]:
    for index in (0, 2):
        x = jax.nn.relu(linear(p, f"{index}.", x))
    return linear(p, "4.", x), {}


def encoder(p: Weights, x: jax.Array, key: jax.Array | None, rate: float) -> tuple[jax.Array, Weights]:
    for index, own in enumerate(split(key, layers_of(p, "encoder.layers."))):
        x = encoder_layer(p, f"encoder.layers.{index}.", x, own, rate, 4, jax.nn.relu, False)
    return linear(p, "classifier.", x.mean(1)), {}


def bert(p: Weights, tokens: jax.Array, key: jax.Array | None, rate: float) -> tuple[jax.Array, Weights]:
    first, *keys = split(key, 1 + layers_of(p, "encoder.layers."))
    x = p["embedding.weight"][tokens] + p["position"] + p["segment.weight"][jnp.zeros_like(tokens)]
    x = drop(first, layer_norm(p, "norm.", x), rate)
    for index, own in enumerate(keys):
        x = encoder_layer(p, f"encoder.layers.{index}.", x, own, rate, 4, gelu, False)
    x = layer_norm(p, "head.2.", gelu(linear(p, "head.0.", x)))
    return linear(p, "head.3.", x).reshape(tokens.size, -1), {}


def vit(p: Weights, images: jax.Array, key: jax.Array | None, rate: float) -> tuple[jax.Array, Weights]:
    batch, channels, height, width = images.shape
    patches = images.reshape(batch, channels, height // 8, 8, width // 8, 8).transpose(0, 2, 4, 1, 3, 5)
    kernel = p["patches.weight"].reshape(len(p["patches.bias"]), -1)
    x = patches.reshape(batch, -1, kernel.shape[1]) @ kernel.T + p["patches.bias"]
    token = jnp.broadcast_to(p["token"], (batch, 1, x.shape[-1]))
    x = jnp.concatenate([token, x], axis=1) + p["position"]
    for index, own in enumerate(split(key, layers_of(p, "encoder.layers."))):
        x = encoder_layer(p, f"encoder.layers.{index}.", x, own, rate, 3, gelu, True)
    return linear(p, "head.", layer_norm(p, "encoder.norm.", x)[:, 0]), {}


def gpt2(p: Weights, tokens: jax.Array, key: jax.Array | None, rate: float) -> tuple[jax.Array, Weights]:
    batch, length = tokens.shape
    first, *keys = split(key, 1 + layers_of(p, "blocks."))
    x = drop(first, p["embedding.weight"][tokens] + p["position.weight"][:length], rate)
    width = x.shape[-1]
    for index, own in enumerate(keys):
        name, (one, two, three) = f"blocks.{index}.", split(own, 3)
        qkv = linear(p, f"{name}qkv.", layer_norm(p, f"{name}attention_norm.", x)).reshape(batch, length, 3, -1, 64)
        query, keys_of, value = qkv.transpose(2, 0, 3, 1, 4)
        heads = attention(query, keys_of, value, CAUSAL, one, rate)
        out = linear(p, f"{name}attention_out.", heads.transpose(0, 2, 1, 3).reshape(batch, length, width))
        x = x + drop(two, out, rate)
        hidden = jax.nn.gelu(linear(p, f"{name}mlp_in.", layer_norm(p, f"{name}mlp_norm.", x)), approximate=True)
        x = x + drop(three, linear(p, f"{name}mlp_out.", hidden), rate)
    head = {"weight": p["embedding.weight"].astype(p["blocks.0.qkv.weight"].dtype)}
    return linear(head, "", layer_norm(p, "norm.", x)).reshape(batch * length, -1), {}


def rotated(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-second, first], axis=-1) * sin


def llama(p: Weights, tokens: jax.Array, key: jax.Array | None, rate: float) -> tuple[jax.Array, Weights]:
    batch, length = tokens.shape
    x = p["embedding.weight"][tokens]
    cos, sin = p["cos"], p["sin"]

    def heads(name: str, x: jax.Array) -> jax.Array:
        return linear(p, name, x).reshape(batch, length, -1, cos.shape[-1]).transpose(0, 2, 1, 3)

    for index in range(layers_of(p, "blocks.")):
        name = f"blocks.{index}."
        normed = rms_norm(p, f"{name}attention_norm.", x)
        query, keys, value = (heads(f"{name}{part}.", normed) for part in ("query", "key", "value"))
        shared = query.shape[1] // keys.shape[1]
        keys, value = (jnp.repeat(each, shared, axis=1) for each in (rotated(keys, cos, sin), value))
        mixed = attention(rotated(query, cos, sin), keys, value, CAUSAL)
        x = x + linear(p, f"{name}attention_out.", mixed.transpose(0, 2, 1, 3).reshape(x.shape))
        normed = rms_norm(p, f"{name}mlp_norm.", x)
        hidden = jax.nn.silu(linear(p, f"{name}gate.", normed)) * linear(p, f"{name}up.", normed)
        x = x + linear(p, f"{name}down.", hidden)
    return linear(p, "head.", rms_norm(p, "norm.", x)).reshape(batch * length, -1), {}


def lstm(p: Weights, x: jax.Array, key: jax.Array | None, rate: float) -> tuple[jax.Array, Weights]:
    x = x.swapaxes(0, 1)
    for layer in range(2):
        bias = p[f"lstm.bias_ih_l{layer}"] + p[f"lstm.bias_hh_l{layer}"]
        gates = x @ p[f"lstm.weight_ih_l{layer}"].T + bias
        weight = p[f"lstm.weight_hh_l{layer}"].T

        def cell(state: Any, gate: jax.Array, weight: jax.Array = weight) -> Any:
            hidden, memory = state
            enter, forget, new, leave = jnp.split(gate + hidden @ weight, 4, axis=-1)
            memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(new)
            hidden = jax.nn.sigmoid(leave) * jnp.tanh(memory)
            return (hidden, memory), hidden

        zeros = jnp.zeros((x.shape[1], len(weight)), x.dtype)
        _, x = jax.lax.scan(cell, (zeros, zeros), gates)
    return linear(p, "head.", x[-1]), {}


FORWARD: dict[str, Forward] = {
    "mlp": mlp,
    "encoder": encoder,
    "gpt2_like": gpt2,
    "gpt2": gpt2,
    "bert_like": bert,
    "llama_like": llama,
    "llama": llama,
    "vit_like": vit,
    "lstm": lstm,
}
