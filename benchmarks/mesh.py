"""One program over four virtual CPU devices against the same model by hand in JAX, with the same shardings.

    python -m benchmarks.mesh [--models gpt2_like,llama_like] [--layouts data,fsdp,tensor,both] [--rounds 5]
        [--growth 4,16,64,256] [--write docs/benchmarks.md]

For each model and layout, in turns in one process: a training step (AdamW, no dropout), and the first one with
recording and compiling, ours over JAX's. "alone" is our step over ours on one device with the same batch; "recording"
the thread's processor time to record a step, over that without SPMD; "memory" XLA's peak of a device, ours over JAX's.
Virtual devices share the machine's cores, so only ratios mean something. A step for more devices than there are is
planned with FSDP: recorded and compiled, not run; seconds of processor time.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={1 if '--alone' in sys.argv else 4}"
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
from benchmarks import jax_steps, machine, page
from benchmarks.models import WORKLOADS

HEADING = "## One program over a mesh"
MESHES = {"data": (4, 1), "fsdp": (4, 1), "tensor": (1, 4), "both": (2, 2)}
AXES = ("data", "model")

Spec = tuple[str | None, ...]


def spec_of(size: tuple[int, ...], layout: str, shape: tuple[int, ...] = ()) -> Spec:
    """How a parameter of this size is divided: the same for both contestants."""
    sides = dict(zip(AXES, shape or MESHES[layout], strict=True))
    found: list[str | None] = [None] * len(size)
    if layout in ("tensor", "both") and len(size) == 2:
        # Layers that widen are divided by their outputs, layers that narrow by their inputs.
        dim = 0 if size[0] >= size[1] else 1
        if size[dim] % sides["model"] == 0:
            found[dim] = "model"
    if layout in ("fsdp", "both"):
        free = [dim for dim, length in enumerate(size) if found[dim] is None and length % sides["data"] == 0]
        if free:
            found[max(free, key=lambda dim: size[dim])] = "data"
    return tuple(found)


class Ours:
    """The model in PyTorch on the xla device; without a mesh on one device."""

    def __init__(self, name: str, layout: str, shape: tuple[int, ...] = ()) -> None:
        torch.manual_seed(0)
        workload = WORKLOADS[name]
        self.model = workload.build(0.0).to("xla")
        self.inputs, self.targets = (tensor.to("xla") for tensor in workload.batch())
        if layout:
            mesh = xs.Mesh(np.arange(int(np.prod(shape or MESHES[layout]))), shape or MESHES[layout], AXES)
            for parameter in self.model.parameters():
                xs.mark_sharding(parameter, mesh, spec_of(tuple(parameter.shape), layout, shape))
            for tensor in (self.inputs, self.targets):
                xs.mark_sharding(tensor, mesh, ("data", *[None] * (tensor.dim() - 1)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def record(self) -> None:
        """Forward, loss, backward and AdamW. No gradients are left, as in JAX."""
        loss = F.cross_entropy(self.model(self.inputs), self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss = loss.detach()

    def step(self) -> None:
        """One step is sent off."""
        self.record()
        torch_xla.sync()

    def wait(self) -> float:
        """The loss, when all is done."""
        return self.loss.item()

    def recording(self, count: int) -> float:
        """Seconds of this thread's processor time until a step is recorded, at best."""
        times = []
        for _ in range(count):
            start = time.thread_time()
            self.record()
            times.append(time.thread_time() - start)
            torch_xla.sync()
            self.wait()
        return min(times)

    def peak(self) -> int:
        """The bytes of a device at the peak of a step."""
        return torch_xla.debug.plan(self.record, steps=1).programs[0].peak


class ByHand:
    """The same in JAX."""

    def __init__(self, name: str, layout: str) -> None:
        torch.manual_seed(0)
        workload = WORKLOADS[name]
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(MESHES[layout]), AXES)
        whole = jax_steps.JaxTraining(name, workload.build(0.0), workload.batch(), 0.0)
        placed = jax.tree.map(lambda a: NamedSharding(mesh, P(*spec_of(a.shape, layout))), whole.state)
        placed["fixed"] = jax.tree.map(lambda _: NamedSharding(mesh, P()), whole.state["fixed"])  # as our buffers
        self.state = jax.device_put(whole.state, placed)
        self.inputs, self.targets = jax.device_put((whole.x, whole.labels), NamedSharding(mesh, P("data")))
        step: Any = jax_steps.train
        self.train = jax.jit(
            lambda state, x, y: step.__wrapped__(state, x, y, whole.forward, 0.0, jnp.float32),
            donate_argnums=0,
            out_shardings=(placed, None),
        )

    def peak(self) -> int:
        """The bytes of a device at the peak of a step."""
        sizes: Any = self.train.lower(self.state, self.inputs, self.targets).compile().memory_analysis()
        held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        return int(held + sizes.temp_size_in_bytes)

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


def alone(name: str, rounds: int, count: int) -> dict[str, float]:
    """Of our step on one device: the median of its seconds, and those of its recording."""
    ours = Ours(name, "")
    steps(ours, 3)
    return {
        "step": median(seconds(lambda: steps(ours, count)) / count for _ in range(rounds)),
        "recording": ours.recording(8),
    }


def measured(name: str, layout: str, rounds: int, count: int, one: dict[str, float]) -> list[str]:
    """One row."""
    ours, by_hand = Ours(name, layout), ByHand(name, layout)
    contestants: dict[str, Ours | ByHand] = {"ours": ours, "jax": by_hand}
    first = {key: seconds(lambda c=c: steps(c, 1)) for key, c in contestants.items()}  # type: ignore[misc]
    for contestant in contestants.values():
        steps(contestant, 3)
    found: dict[str, list[float]] = {key: [] for key in contestants}
    for _ in range(rounds):
        for key, contestant in contestants.items():
            found[key].append(seconds(lambda c=contestant: steps(c, count)) / count)  # type: ignore[misc]
    losses = [contestant.wait() for contestant in contestants.values()]
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=2e-3)
    ratios = (
        median(a / b for a, b in zip(found["ours"], found["jax"], strict=True)),
        first["ours"] / first["jax"],
        median(found["ours"]) / one["step"],
        ours.recording(8) / one["recording"],
        ours.peak() / by_hand.peak(),
    )
    return [f"{WORKLOADS[name].model}, {layout}", f"{median(found['ours']):.3f}", *(f"{each:.2f}" for each in ratios)]


def grown(name: str, devices: int) -> list[str]:
    """Measure planning a step over `devices` devices; the model is created in the first of two calls."""
    made: list[Ours] = []

    def step() -> None:
        if not made:
            made.append(Ours(name, "fsdp", (devices, 1)))
        made[0].record()

    start = time.process_time()
    plan = torch_xla.debug.plan(step, devices=devices)
    taken = time.process_time() - start
    program = plan.programs[-1]
    kinds = sum(each.count for each in program.work.collectives)
    return [f"{WORKLOADS[name].model}, {devices} devices", f"{taken:.1f}", f"{plan.peak / 1e6:.1f}", f"{kinds}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="gpt2_like,llama_like")
    parser.add_argument("--layouts", default=",".join(MESHES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--growth", default="")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    models, layouts = (options.models.split(","), [each for each in options.layouts.split(",") if each])
    if options.alone:
        print(json.dumps({name: alone(name, options.rounds, options.steps) for name in models}))
        return
    xr.use_spmd()
    rows = []
    with machine.watched() as disturbance:
        sizes = ["--rounds", str(options.rounds), "--steps", str(options.steps), "--models", options.models]
        call = [sys.executable, "-m", "benchmarks.mesh", "--alone", *sizes]
        ones = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout) if layouts else {}
        for name in models:
            rows += [measured(name, layout, options.rounds, options.steps, ones[name]) for layout in layouts]
        growth = [grown(name, int(count)) for name in models for count in options.growth.split(",") if count]
    header = ["", "step, s", "step / JAX", "first / JAX", "step / alone", "recording / alone", "memory / JAX"]
    parts = [page.table(header, rows)] if rows else []
    if growth:
        parts.append(page.table(["planned", "plan of two steps, s", "peak, MB", "collectives"], growth))
    parts.append(f"Measured {date.today()}.")
    page.publish(options.write, HEADING, "mesh", __doc__ or "", *parts, disturbance=disturbance)


if __name__ == "__main__":
    main()
