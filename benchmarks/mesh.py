"""One program over four virtual CPU devices against the same model by hand in JAX, with the same shardings.

    python -m benchmarks.mesh [--models gpt2_like,llama_like] [--layouts data,fsdp,tensor,both] [--rounds 5]

For each model and layout, in turns in one process: a steady training step (AdamW, no dropout), ours over JAX's, and the
first step, recording and compiling included. Virtual devices share the machine's cores, so only ratios say something.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("XLA_PERSISTENT_CACHE_PATH", "")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from torch.nn import functional as F

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from benchmarks import jax_steps
from benchmarks.models import WORKLOADS

MESHES = {"data": (4, 1), "fsdp": (4, 1), "tensor": (1, 4), "both": (2, 2)}
AXES = ("data", "model")

Spec = tuple[str | None, ...]


def spec_of(size: tuple[int, ...], layout: str) -> Spec:
    """How a parameter of this size is divided: the same for both contestants."""
    sides = dict(zip(AXES, MESHES[layout], strict=True))
    found: list[str | None] = [None] * len(size)
    if layout in ("tensor", "both") and len(size) == 2:
        # Layers that widen are divided by what they give, those that narrow by what they take.
        dim = 0 if size[0] >= size[1] else 1
        if size[dim] % sides["model"] == 0:
            found[dim] = "model"
    if layout in ("fsdp", "both"):
        free = [dim for dim, length in enumerate(size) if found[dim] is None and length % sides["data"] == 0]
        if free:
            found[max(free, key=lambda dim: size[dim])] = "data"
    return tuple(found)


class Ours:
    """The model in PyTorch on the xla device."""

    def __init__(self, name: str, layout: str) -> None:
        torch.manual_seed(0)
        workload = WORKLOADS[name]
        mesh = xs.Mesh(np.arange(4), MESHES[layout], AXES)
        self.model = workload.build(0.0).to("xla")
        for parameter in self.model.parameters():
            xs.mark_sharding(parameter, mesh, spec_of(tuple(parameter.shape), layout))
        self.inputs, self.targets = (tensor.to("xla") for tensor in workload.batch())
        for tensor in (self.inputs, self.targets):
            xs.mark_sharding(tensor, mesh, ("data", *[None] * (tensor.dim() - 1)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        torch_xla.sync(wait=True)

    def step(self) -> None:
        """Forward, loss, backward and AdamW."""
        loss = F.cross_entropy(self.model(self.inputs), self.targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.loss = loss.detach()
        torch_xla.sync()

    def wait(self) -> float:
        """The loss, when all is done."""
        return self.loss.item()


class ByHand:
    """The same in JAX."""

    def __init__(self, name: str, layout: str) -> None:
        torch.manual_seed(0)
        workload = WORKLOADS[name]
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(MESHES[layout]), AXES)
        whole = jax_steps.JaxTraining(name, workload.build(0.0), workload.batch(), 0.0)
        placed = jax.tree.map(lambda a: NamedSharding(mesh, P(*spec_of(a.shape, layout))), whole.state)
        self.state = jax.device_put(whole.state, placed)
        self.inputs, self.targets = jax.device_put((whole.x, whole.labels), NamedSharding(mesh, P("data")))
        step: Any = jax_steps.train
        self.train = jax.jit(
            lambda state, x, y: step.__wrapped__(state, x, y, whole.forward, 0.0, jnp.float32),
            donate_argnums=0,
            out_shardings=(placed, None),
        )

    def step(self) -> None:
        """Forward, loss, backward and AdamW."""
        self.state, self.loss = self.train(self.state, self.inputs, self.targets)

    def wait(self) -> float:
        """The loss, when all is done."""
        return float(self.loss)


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def steps(contestant: Ours | ByHand, count: int) -> None:
    for _ in range(count):
        contestant.step()
    contestant.wait()


def measured(name: str, layout: str, rounds: int, count: int) -> str:
    """One row: first steps, steady steps, ours over JAX's."""
    contestants = {"ours": Ours(name, layout), "jax": ByHand(name, layout)}
    first = {key: seconds(lambda c=c: steps(c, 1)) for key, c in contestants.items()}  # type: ignore[misc]
    for contestant in contestants.values():
        steps(contestant, 3)
    found: dict[str, list[float]] = {key: [] for key in contestants}
    for _ in range(rounds):
        for key, contestant in contestants.items():
            found[key].append(seconds(lambda c=contestant: steps(c, count)) / count)  # type: ignore[misc]
    steady = median(a / b for a, b in zip(found["ours"], found["jax"], strict=True))
    losses = " ".join(f"{contestant.wait():.5f}" for contestant in contestants.values())
    return (
        f"| {name} | {layout} | {median(found['ours']):.3f} s | {steady:.2f} | {first['ours']:.1f} s | "
        f"{first['ours'] / first['jax']:.2f} | {losses} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="gpt2_like,llama_like")
    parser.add_argument("--layouts", default=",".join(MESHES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    xr.use_spmd()
    print("| model | layout | step | step / JAX | first step | first / JAX | losses, ours and JAX's |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    for name in options.models.split(","):
        for layout in options.layouts.split(","):
            print(measured(name, layout, options.rounds, options.steps), flush=True)


if __name__ == "__main__":
    main()
