"""Training steps beside JAX by hand, as compiled for a TPU that is not here: memory, traffic and estimated time.

    pip install 'torch_xla[plan-tpu]'
    python -m benchmarks.devices [gpt2 llama resnet50 ...] [--on v5e:1x1] [--layout fsdp] [--dtype bfloat16]

Both compile the same model with AdamW for one topology. With `--layout fsdp` the rows of every parameter and the
examples of the batch are divided over its devices; with `--layout tp` the features of a Llama's layers are, as Megatron
divides them. Nothing runs. Ratios are ours by JAX's.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import torch_xla
import torch_xla.distributed.spmd as xs
from benchmarks.jax_models import PLATFORM
from benchmarks.jax_steps import JaxTraining, autocast, train
from benchmarks.models import OF_GPUS, WORKLOADS, Workload
from benchmarks.steps import Setting, Steps
from torch_xla._engine.planning import cost_model, estimated_cycles, hlo_parser
from torch_xla._engine.runtime.topologies import devices_of, named

ALL = {**WORKLOADS, **OF_GPUS}
# Which model of `jax_models` computes the same as a large workload.
_LIKE = {"gpt2": "gpt2_like", "llama": "llama_like"}
AXIS = "divided"


@dataclass(frozen=True)
class Figures:
    """What a compiled step needs on each device."""

    bytes: float  # read and written
    temporaries: float
    peak: float
    cycles: float
    collectives: Mapping[str, int]  # bytes of each kind

    @property
    def sent(self) -> float:
        """The bytes of all collectives."""
        return sum(self.collectives.values())


def figures_of(text: str, memory: Any) -> Figures:
    """Read the figures from a program and what its compiler says of its memory."""
    modules = [hlo_parser.module(text, 1)]
    work = cost_model.work_of(modules)
    sent: dict[str, int] = {}
    for each in work.collectives:
        sent[each.kind] = sent.get(each.kind, 0) + each.bytes
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    cycles = estimated_cycles.cycles_of(modules).all
    temporaries = memory.temp_size_in_bytes
    return Figures(work.bytes, temporaries, kept + temporaries, cycles, sent)


def rows_divided(shape: tuple[int, ...], devices: int) -> tuple[str | None, ...]:
    """Return the axis for each dimension of a value: the first, if it has rows for all devices."""
    if not shape or shape[0] % devices:
        return (None,) * len(shape)
    return (AXIS,) + (None,) * (len(shape) - 1)


def features_divided(name: str, shape: tuple[int, ...]) -> tuple[str | None, ...]:
    """Return the axis for each dimension of a Llama's weight, as Megatron divides the layers."""
    if len(shape) < 2:  # also the step count that the optimizer has for the weight
        return (None,) * len(shape)
    layer = name.removesuffix(".weight").rpartition(".")[2]
    if layer in ("attention_out", "down"):
        return None, AXIS
    return (AXIS, None) if layer in ("query", "key", "value", "gate", "up", "head") else (None,) * len(shape)


def axes_of(layout: str, name: str, shape: tuple[int, ...], devices: int) -> tuple[str | None, ...]:
    """Return the axis for each dimension of a parameter, or of a batch, which has no name."""
    if layout == "fsdp":
        return rows_divided(shape, devices)
    return features_divided(name, shape) if layout == "tp" else (None,) * len(shape)


def ours(workload: Workload, dtype: str, topology: str, layout: str) -> Figures:
    """The step as the xla device records it; the second, because the first makes the optimizer's state."""
    torch_xla.manual_seed(0)
    steps = Steps(workload, workload.dropout, Setting(dtype=dtype), torch.device("xla"))
    count = len(devices_of(named(topology)))
    seen: list[Any] = []

    def step() -> None:
        if layout and not seen:
            mesh = xs.Mesh(np.arange(count), (count,), (AXIS,))
            for name, each in (*steps.model.named_parameters(), ("", steps.inputs), ("", steps.targets)):
                xs.mark_sharding(each, mesh, axes_of(layout, name, tuple(each.shape), count))
        seen.append(steps.step())
        steps.optimizer.zero_grad()  # no gradients are left behind, as in JAX

    plan = torch_xla.debug.plan(step, steps=2, topology=topology)
    program = plan.programs[-1]
    sent: dict[str, int] = {}
    for each in program.work.collectives:
        sent[each.kind] = sent.get(each.kind, 0) + each.bytes
    peak = program.peak - program.code
    return Figures(program.work.bytes, program.sizes.intermediate, peak, program.cycles.all, sent)


def by_hand(name: str, workload: Workload, dtype: str, topology: str, layout: str) -> Figures:
    """The step in plain JAX."""
    devices = np.array(devices_of(named(topology)))
    mesh = Mesh(devices, (AXIS,))
    training = JaxTraining(_LIKE.get(name, name), workload.build(workload.dropout), workload.batch(), 0.0, dtype)

    def placed(path: tuple[Any, ...], value: Any) -> jax.ShapeDtypeStruct:
        axes = axes_of(layout, str(path[-1].key) if path else "", value.shape, len(devices))
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    state = jax.tree.map_with_path(placed, training.state)
    x, labels = placed((), training.x), placed((), training.labels)
    results = (jax.tree.map(lambda each: each.sharding, state), None)
    step = jax.jit(
        train.__wrapped__,
        static_argnames=("forward", "rate", "dtype", "narrowed"),
        donate_argnames=("state",),
        out_shardings=results if layout else None,
    )
    token = PLATFORM.set("tpu" if len(devices) == 1 else "")
    lowered = step.lower(state, x, labels, training.forward, workload.dropout, training.dtype, autocast)
    PLATFORM.reset(token)
    compiled = lowered.compile(compiler_options={"xla_tpu_no_crash_on_oom": True})
    return figures_of(compiled.as_text(), compiled.memory_analysis())


def _row(name: str, one: Figures, other: Figures) -> str:
    def cell(field: str, unit: float) -> str:
        a, b = getattr(one, field), getattr(other, field)
        return f"{a / unit:.4g} / {b / unit:.4g}" + (f" = {a / b:.3f}" if b else "")

    kinds = ", ".join(
        f"{kind} {one.collectives.get(kind, 0) / 1e6:.3g} / {other.collectives.get(kind, 0) / 1e6:.3g}"
        for kind in sorted({*one.collectives, *other.collectives})
    )
    cells = [cell("bytes", 1e6), cell("temporaries", 1e6), cell("peak", 1e6), cell("cycles", 1e3), kinds or "none"]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices", description=__doc__.split("\n")[0])
    parser.add_argument("workloads", nargs="*", choices=[*ALL, []], default=[], help="(default: three small ones)")
    parser.add_argument("--on", default="v5e:1x1", help="a topology, such as v5e:1x1 or v5e:2x2")
    parser.add_argument(
        "--layout", default="", choices=["", "fsdp", "tp"], help="how values are divided (default: not)"
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    print("| ours / JAX by hand | MB moved | MB of intermediates | MB at the peak | kilocycles | MB of collectives |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in options.workloads or ("gpt2_like", "llama_like", "resnet_like"):
        given = ALL[name], options.dtype, options.on, options.layout
        print(
            _row(f"{name} {options.dtype} {options.on} {options.layout}".strip(), ours(*given), by_hand(name, *given)),
            flush=True,
        )


if __name__ == "__main__":
    main()
