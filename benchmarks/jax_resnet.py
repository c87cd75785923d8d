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
        # A bottleneck has three convolutions, and the stride in the second.
        is_narrow = f"{name}.conv3.weight" in self.p
        sides = ((1, 0, 1), (2, 1, stride), (3, 0, 1)) if is_narrow else ((1, 1, stride), (2, 1, 1))
        hidden = x
        for number, padding, own_stride in sides:
            hidden = hidden if number == 1 else jax.nn.relu(hidden)
            hidden = self.convolution(f"{name}.conv{number}", hidden, own_stride, padding)
            hidden = self.norm(f"{name}.norm{number}", hidden)
        if f"{name}.shortcut.0.weight" in self.p:
            x = self.norm(f"{name}.shortcut.1", self.convolution(f"{name}.shortcut.0", x, stride, 0))
        return jax.nn.relu(hidden + x)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.convolution("0", images.transpose(0, 2, 3, 1), 2, 3)
        x = jax.nn.relu(self.norm("1", x))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
        index = 4
        while f"{index}.conv1.weight" in self.p:
            # From the second stage on, the first block of each has a shortcut that halves the sides.
            halves = index > 4 and f"{index}.shortcut.0.weight" in self.p
            x = self.block(f"{index}", x, 2 if halves else 1)
            index += 1
        return linear(self.p, f"{index + 2}.", x.mean((1, 2)))


def forward(p: Weights, images: jax.Array, key: jax.Array | None, rate: float) -> tuple[jax.Array, Weights]:
    """The logits; with a key, as in training: by the batch's statistics, with the new running ones."""
    network = ResNet(p, key is not None)
    return network(images), network.replaced
