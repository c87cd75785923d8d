"""The ResNet written by hand in JAX, channels last as JAX likes it, with running statistics as PyTorch keeps them."""

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.jax_models import Weights, linear

MOMENTUM = 0.1


class ResNet:
    """One pass through the network; in training, `replaced` collects the new running statistics."""

    def __init__(self, p: Weights, training: bool) -> None:
        self.p = p
        self.training = training
        self.replaced: Weights = {}

    def convolution(self, name: str, x: jax.Array, stride: int, padding: int) -> jax.Array:
        kernel = self.p[f"{name}.weight"].transpose(2, 3, 1, 0)
        borders = [(padding, padding)] * 2
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), borders, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def norm(self, name: str, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        mean, variance = self.p[f"{name}.running_mean"], self.p[f"{name}.running_var"]
        if self.training:
            known = {f"{name}.running_mean": mean, f"{name}.running_var": variance}
            mean, variance = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
            count = wide.size / wide.shape[-1]
            seen = {f"{name}.running_mean": mean, f"{name}.running_var": variance * count / (count - 1)}
            self.replaced |= {key: (1 - MOMENTUM) * known[key] + MOMENTUM * seen[key] for key in seen}
        scale = lax.rsqrt(variance + 1e-5) * self.p[f"{name}.weight"]
        return ((wide - mean) * scale + self.p[f"{name}.bias"]).astype(x.dtype)

    def block(self, name: str, x: jax.Array, stride: int) -> jax.Array:
        hidden = jax.nn.relu(self.norm(f"{name}.norm1", self.convolution(f"{name}.conv1", x, stride, 1)))
        hidden = self.norm(f"{name}.norm2", self.convolution(f"{name}.conv2", hidden, 1, 1))
        if f"{name}.shortcut.0.weight" in self.p:
            x = self.norm(f"{name}.shortcut.1", self.convolution(f"{name}.shortcut.0", x, stride, 0))
        return jax.nn.relu(hidden + x)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.convolution("0", images.transpose(0, 2, 3, 1), 2, 3)
        x = jax.nn.relu(self.norm("1", x))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
        for index, stride in enumerate((1, 1, 2, 1, 2, 1, 2, 1)):
            x = self.block(f"{4 + index}", x, stride)
        return linear(self.p, "14.", x.mean((1, 2)))


def forward(p: Weights, images: jax.Array, key: jax.Array | None, rate: float) -> tuple[jax.Array, Weights]:
    """The logits; with a key, as in training: by the batch's statistics, with the new running ones."""
    network = ResNet(p, key is not None)
    return network(images), network.replaced
