"""Steps in JAX around the models of `jax_models.py`: training with AdamW, and inference; one jitted function each."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from torch import Tensor, nn

from benchmarks import jax_resnet
from benchmarks.jax_models import FORWARD, Forward, Weights

# Takes weights and the dtype to compute in, and gives the weights as the model takes them.
Narrowed = Callable[[Weights, Any], Weights]
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def forward_of(name: str) -> Forward:
    """The model that `WORKLOADS[name]` is."""
    return jax_resnet.forward if name.startswith("resnet") else FORWARD[name]


def weights_of(model: nn.Module) -> Weights:
    """Return copies of weights and buffers by PyTorch's names, because the step donates them. Tied ones occur once."""
    tied = {id(parameter) for parameter in model.parameters()}
    own = {name: value for name, value in model.named_parameters()} | dict(model.named_buffers())
    assert len(tied) + len(list(model.buffers())) == len(own)
    return {name: jnp.array(value.detach().float().numpy(), copy=True) for name, value in own.items()}


def cast(weights: Weights, dtype: Any) -> Weights:
    """The weights as the model computes with them."""
    return {name: w.astype(dtype) if w.dtype == jnp.float32 else w for name, w in weights.items()}


# Parts of the names of weights that `torch.autocast` leaves in float32: embeddings, positions and norms.
_WIDE = ("embedding", "position", "segment", "token", "norm", "cos", "sin", "running")


def autocast(weights: Weights, dtype: Any) -> Weights:
    """The weights as a model in `torch.autocast` computes with them: those of products and convolutions in `dtype`.

    So what a layer adds to its input is added in float32, as in PyTorch; with `cast` all of it is in `dtype`.
    """
    return {
        name: w.astype(dtype) if w.dtype == jnp.float32 and not any(part in name for part in _WIDE) else w
        for name, w in weights.items()
    }


def inputs_of(tensor: Tensor, dtype: Any) -> jax.Array:
    """Numbers in `dtype`, or tokens."""
    return jnp.asarray(tensor.numpy(), dtype if tensor.is_floating_point() else jnp.int32)


def loss_of(
    learned: Weights,
    fixed: Weights,
    x: jax.Array,
    labels: jax.Array,
    key: jax.Array,
    forward: Forward,
    rate: float,
    dtype: Any,
    narrowed: Narrowed = cast,
) -> tuple[jax.Array, Weights]:
    logits, replaced = forward(narrowed({**learned, **fixed}, dtype), x, key, rate)
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    loss = -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()
    return loss, {name: value.astype(jnp.float32) for name, value in replaced.items()}


@partial(jax.jit, static_argnames=("forward", "rate", "dtype", "narrowed"), donate_argnames=("state",))
def train(
    state: dict[str, Any],
    x: jax.Array,
    labels: jax.Array,
    forward: Forward,
    rate: float,
    dtype: Any,
    narrowed: Narrowed = cast,
) -> tuple[Any, jax.Array]:
    """Forward, backward and AdamW as `torch.optim.AdamW(lr=1e-3)` does it."""
    key, used = jax.random.split(state["key"])
    gradient = jax.value_and_grad(loss_of, has_aux=True)
    given = x, labels, used, forward, rate, dtype, narrowed
    (loss, replaced), gradients = gradient(state["learned"], state["fixed"], *given)
    count = state["count"] + 1
    lr, decay, beta1, beta2, eps = 1e-3, 1e-2, 0.9, 0.999, 1e-8
    first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state["second"], gradients)
    correction1, correction2 = 1 - beta1**count, jnp.sqrt(1 - beta2**count)
    learned = jax.tree.map(
        lambda p, m, v: p * (1 - lr * decay) - lr / correction1 * m / (jnp.sqrt(v) / correction2 + eps),
        state["learned"],
        first,
        second,
    )
    fixed = {**state["fixed"], **replaced}
    return {"learned": learned, "fixed": fixed, "first": first, "second": second, "count": count, "key": key}, loss


@partial(jax.jit, static_argnames=("forward",))
def infer(weights: Weights, x: jax.Array, forward: Forward) -> jax.Array:
    """The logits."""
    return forward(weights, x, None, 0.0)[0]


class JaxTraining:
    """Trains the model that `model` is, on one batch, step after step."""

    def __init__(
        self, name: str, model: nn.Module, batch: tuple[Tensor, Tensor], rate: float, dtype: str = "float32"
    ) -> None:
        weights = weights_of(model)
        learned = {name: weights[name] for name, _ in model.named_parameters()}
        self.state: dict[str, Any] = {
            "learned": learned,
            "fixed": {name: value for name, value in weights.items() if name not in learned},
            "first": jax.tree.map(jnp.zeros_like, learned),
            "second": jax.tree.map(jnp.zeros_like, learned),
            "count": jnp.zeros((), jnp.float32),
            "key": jax.random.key(0, impl="rbg"),
        }
        self.dtype = DTYPES[dtype]
        self.x, self.labels = inputs_of(batch[0], self.dtype), inputs_of(batch[1], jnp.int32)
        self.forward = forward_of(name)
        self.rate = rate

    def step(self) -> jax.Array:
        self.state, loss = train(self.state, self.x, self.labels, self.forward, self.rate, self.dtype)
        return loss


class JaxInference:
    """Evaluates the model that `model` is, on one batch."""

    def __init__(self, name: str, model: nn.Module, batch: tuple[Tensor, Tensor], dtype: str = "float32") -> None:
        assert not model.training
        self.weights = cast(weights_of(model), DTYPES[dtype])
        self.x = inputs_of(batch[0], DTYPES[dtype])
        self.forward = forward_of(name)

    def step(self) -> jax.Array:
        return infer(self.weights, self.x, self.forward)
