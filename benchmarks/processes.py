"""Measure training and collectives in several processes of this machine, all contestants in turn in the same ones.

    python -m benchmarks.processes [--processes 2] [--what steps,collectives,start] [--workload gpt2_like] [--rounds 7]
        [--write docs/benchmarks.md]

Collectives: an all-reduce that is waited for, ours and gloo's called by PyTorch. Steps: all processes together have a
batch of the same size, as `DistributedDataParallel` and `XlaFullyShardedDataParallel`, eager PyTorch over gloo, one
process with the whole batch while the others wait, and JAX by hand. Start: seconds from `launch` to the end of the
first collective. Ratios are medians over rounds of measurements side by side.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
import torch
import torch.distributed as dist
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401  (registers the backend "xla")
from benchmarks import machine, page
from benchmarks.jax_steps import forward_of, loss_of, weights_of
from benchmarks.models import WORKLOADS, GptBlock, LlamaBlock
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy

HEADING = "## Several processes"
WARM_UP = 4
STEPS = 5
SIZES = {"1 kB": 256, "1 MB": 262_144, "32 MB": 8_388_608}
Run = Callable[[], None]


def training(
    name: str, wrap: Callable[[nn.Module], nn.Module], device: str, part: Callable[[torch.Tensor], torch.Tensor]
) -> Run:
    """A function that trains for a few steps, and waits for them."""
    torch.manual_seed(0)
    workload = WORKLOADS[name]
    model = wrap(workload.build(0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, labels = (part(each).to(device) for each in workload.batch())

    def run() -> None:
        for _ in range(STEPS):
            loss = nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if device == "xla":
                torch_xla.sync()
        if device == "xla":
            xm.wait_device_ops()

    return run


def by_hand(name: str, rank: int, count: int) -> Run:
    """The same in JAX: `shard_map` over the processes, and a mean of the gradients."""
    torch.manual_seed(0)
    workload = WORKLOADS[name]
    model = workload.build(0.0)
    every = {name: np.asarray(value) for name, value in weights_of(model).items()}
    weights = {name: every.pop(name) for name, _ in model.named_parameters()}
    mesh = Mesh(np.array(jax.devices()), ("replicas",))
    everywhere, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("replicas"))
    put = partial(jax.make_array_from_process_local_data, everywhere)
    zeros = {key: np.zeros_like(value) for key, value in weights.items()}
    state = jax.tree.map(lambda a: put(np.asarray(a)), (weights, zeros, zeros, np.zeros((), np.float32)))
    parts = [each.chunk(count)[rank].numpy() for each in workload.batch()]
    kinds = [np.int32 if np.issubdtype(part.dtype, np.integer) else np.float32 for part in parts]
    x, labels = (
        jax.make_array_from_process_local_data(divided, part.astype(kind))
        for part, kind in zip(parts, kinds, strict=True)
    )
    loss = partial(loss_of, forward=forward_of(name), rate=0.0, dtype=np.float32)

    def step(state: Any, x: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array]:
        learned, first, second, before = state
        gradient = jax.value_and_grad(lambda w: loss(w, every, x, labels, None)[0])
        value, gradients = gradient(learned)
        gradients = jax.lax.pmean(gradients, "replicas")
        count, tree = before + 1, jax.tree.map
        first = tree(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = tree(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
        scale, root = 1e-3 / (1 - 0.9**count), (1 - 0.999**count) ** 0.5
        learned = tree(lambda p, m, v: p * (1 - 1e-5) - scale * m / (v**0.5 / root + 1e-8), learned, first, second)
        return (learned, first, second, count), jax.lax.pmean(value, "replicas")

    whole, part = everywhere.spec, divided.spec
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(whole, part, part), out_specs=(whole, whole), check_vma=False)
    jitted = jax.jit(mapped, donate_argnums=0)

    def run() -> None:
        nonlocal state
        for _ in range(STEPS):
            state, value = jitted(state, x, labels)
        jax.block_until_ready(state)

    return run


def contestants_of_steps(name: str, rank: int, count: int) -> dict[str, Run]:
    gloo = dist.new_group(backend="gloo")
    own = lambda tensor: tensor.chunk(count)[rank]  # noqa: E731
    layers = {GptBlock, LlamaBlock, nn.TransformerEncoderLayer}
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls=layers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # times are kept for CPU and CUDA only
        found = {
            "ours, DDP": training(
                name, lambda m: DistributedDataParallel(m.to("xla"), gradient_as_bucket_view=True), "xla", own
            ),
            "ours, FSDP": training(name, lambda m: XlaFullyShardedDataParallel(m, auto_wrap_policy=policy), "xla", own),
            "eager DDP, gloo": training(name, lambda m: DistributedDataParallel(m, process_group=gloo), "cpu", own),
            "JAX by hand": by_hand(name, rank, count),
        }
    if rank == 0:
        found["ours, one process"] = training(name, lambda m: m.to("xla"), "xla", lambda tensor: tensor)
    else:
        found["ours, one process"] = lambda: None
    return found


def measure(contestants: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, round by round, from where all processes begin to where all have ended."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(WARM_UP + rounds):
        for name, run in contestants.items():
            xm.rendezvous(f"begin {name}")
            start = time.perf_counter()
            run()
            xm.rendezvous(f"end {name}")
            if number >= WARM_UP:
                found[name].append(time.perf_counter() - start)
    return found


def ratio(found: dict[str, list[float]], one: str, other: str) -> float:
    return median(a / b for a, b in zip(found[one], found[other], strict=True))


def steps(name: str, rounds: int) -> list[str]:
    rank, count = dist.get_rank(), dist.get_world_size()
    found = measure(contestants_of_steps(name, rank, count), rounds)
    times = [[each, f"{1000 * median(seconds) / STEPS:.1f}"] for each, seconds in found.items()]
    ratios = [
        [f"{one} / {other}", f"{ratio(found, one, other):.2f}"]
        for one, other in (
            ("ours, DDP", "eager DDP, gloo"), ("ours, DDP", "ours, one process"), ("ours, DDP", "JAX by hand"),
            ("ours, FSDP", "ours, DDP"),
        )
    ]  # fmt: skip
    title = f"{WORKLOADS[name].title}, {count} processes, one batch for all of them"
    return [page.table([title, "ms a step"], times), page.table(["steps", "ratio"], ratios)]


def reducing(tensor: torch.Tensor, group: Any) -> Run:
    def run() -> None:
        for _ in range(STEPS):
            dist.all_reduce(tensor, group=group)
            if tensor.device.type == "xla":
                torch_xla.sync(wait=True)

    return run


def collectives(rounds: int) -> list[str]:
    gloo = dist.new_group(backend="gloo")
    rows = []
    for title, elements in SIZES.items():
        found = measure(
            {
                "ours": reducing(torch.zeros(elements, device="xla"), None),
                "gloo": reducing(torch.zeros(elements), gloo),
            },
            rounds,
        )
        times = [f"{1000 * median(found[name]) / STEPS:.2f}" for name in ("ours", "gloo")]
        rows.append([title, *times, f"{ratio(found, 'ours', 'gloo'):.2f}"])
    return [page.table([f"all-reduce, {dist.get_world_size()} processes", "ours, ms", "gloo, ms", "ratio"], rows)]


def started() -> None:
    """All that one of the processes does when the start is measured."""
    dist.init_process_group("xla", init_method="xla://")
    x = torch.ones(8, device="xla")
    dist.all_reduce(x)
    assert x[0].item() == dist.get_world_size()


def start() -> list[str]:
    rows = []
    one = 0.0
    for count in (1, 2, 4, 8):
        begin = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.processes", "--processes", str(count), "--what", "first"]
        subprocess.run(command, check=True, env={**os.environ, "CPU_NUM_DEVICES": str(count)}, capture_output=True)
        seconds = time.perf_counter() - begin
        one = one or seconds
        rows.append([str(count), f"{seconds:.1f}", f"{seconds / one:.2f}"])
    return [page.table(["processes", "seconds to the end of the first collective", "of one process"], rows)]


def in_each(index: int, what: list[str], workload: str, rounds: int, folder: str) -> None:
    """One of the processes; the first leaves the tables in `folder`."""
    if what == ["first"]:
        started()
        return
    dist.init_process_group("xla", init_method="xla://")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))
    tables = collectives(rounds) if "collectives" in what else []
    if "steps" in what:
        tables += steps(workload, rounds)
    if dist.get_rank() == 0:
        Path(folder, "tables.json").write_text(json.dumps(tables))
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--what", default="steps,collectives,start")
    parser.add_argument("--workload", default="gpt2_like", choices=["mlp", "gpt2_like", "bert_like", "llama_like"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    os.environ["CPU_NUM_DEVICES"] = str(options.processes)
    together = [part for part in options.what.split(",") if part != "start"]
    tables = []
    with machine.watched() as disturbance, TemporaryDirectory() as folder:
        if together:
            torch_xla.launch(in_each, args=(together, options.workload, options.rounds, folder))
        if together == ["first"]:
            return
        if together:
            tables = json.loads(Path(folder, "tables.json").read_text())
        if "start" in options.what:
            tables += start()
    told = [*tables, f"Measured {date.today()}."]
    page.publish(options.write, HEADING, "processes", __doc__ or "", *told, disturbance=disturbance)


if __name__ == "__main__":
    main()
