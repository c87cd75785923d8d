"""A torch module as a JAX function, trained by optax under `jax.jit`, beside torch.optim on the CPU.

python examples/frameworks/optax_training.py
"""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
from torch import nn

from torch_xla.interop import as_jax, to_jax

STEPS = 10
TOLERANCE = 1e-4
# By name: optax's optimizer, and PyTorch's with the same meaning.
OPTIMIZERS: dict[str, tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = {
    "optax.adamw": (optax.adamw(0.01, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)),
    "optax.sgd": (optax.sgd(0.05, momentum=0.9, nesterov=True),
                  lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True)),
    "optax.chain": (optax.chain(optax.clip_by_global_norm(0.5), optax.adam(optax.cosine_decay_schedule(0.05, STEPS))),
                    lambda p: torch.optim.Adam(p, 0.05)),
}  # fmt: skip


def losses_of_torch(name: str, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """The losses of each step on the CPU; a chain clips, and its learning rate falls as a cosine."""
    optimizer = OPTIMIZERS[name][1](module.parameters())
    is_chain = name == "optax.chain"
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS) if is_chain else None
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x), y)
        loss.backward()
        if schedule is not None:
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return losses


def losses_of_optax(name: str, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """The losses of each step of one jitted function."""
    optimizer = OPTIMIZERS[name][0]
    parameters, function = as_jax(module.to("xla"))
    state = optimizer.init(parameters)

    def loss_of(parameters: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((function(parameters, x) - y) ** 2)

    @jax.jit
    def step(parameters: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    losses = []
    for _ in range(STEPS):
        parameters, state, loss = step(parameters, state, to_jax(x.to("xla")), to_jax(y.to("xla")))
        losses.append(float(loss))
    return losses


def main() -> None:
    """Compares each optimizer."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 2))
    x = torch.randn(32, 4)
    y = torch.stack([x.sum(1), x.prod(1)], 1)
    for name in OPTIMIZERS:
        found = losses_of_optax(name, copy.deepcopy(module), x, y)
        expected = losses_of_torch(name, copy.deepcopy(module), x, y)
        apart = max(abs(one - other) for one, other in zip(found, expected, strict=True))
        assert apart < TOLERANCE and expected[-1] < expected[0], (found, expected)
        print(f"{name}: {apart:.1e} from the CPU")


if __name__ == "__main__":
    main()
