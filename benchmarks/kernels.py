"""Single operators of the measured models, on the xla device and by PyTorch itself; and the page faults of a step.

    python -m benchmarks.kernels [--only convolution] [--options '{"xla_cpu_use_xnnpack": true}']
    python -m benchmarks.kernels --steps vit_like,resnet_like

The shortest of many runs counts, in milliseconds: other work of the machine can only add time. For the steps, the time
of all threads together is shown, and the part of it that the kernel took.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

import torch_xla
from benchmarks.contestants import CONTESTANTS
from benchmarks.machine import confine
from benchmarks.models import WORKLOADS
from torch_xla._engine.lowering.machinery.registry import rule_of

aten = torch.ops.aten

# Rows, inputs and outputs of linear layers; batch, rows, inner and columns of batched products.
LINEAR = [(512, 256, 704), (512, 384, 1536), (1040, 192, 768)]
BATCHED = [(48, 65, 64, 65), (48, 65, 65, 64), (24, 128, 64, 128)]
# Images, kernel, stride and padding.
CONVOLUTIONS = [
    ((16, 3, 64, 64), (64, 3, 7, 7), 2, 3),
    ((16, 64, 16, 16), (64, 64, 3, 3), 1, 1),
    ((16, 128, 8, 8), (128, 128, 3, 3), 1, 1),
    ((16, 256, 4, 4), (256, 256, 3, 3), 1, 1),
    ((16, 256, 4, 4), (512, 256, 3, 3), 2, 1),
    ((16, 512, 2, 2), (512, 512, 3, 3), 1, 1),
]

Case = tuple[str, Any, list[torch.Tensor], tuple[Any, ...]]


def cases() -> list[Case]:
    """A name, the operator, its tensors, and the arguments behind them."""
    found: list[Case] = []
    for rows, inputs, outputs in LINEAR:
        found.append(
            (f"product {rows}x{inputs}x{outputs}", aten.mm.default, tensors((rows, inputs), (inputs, outputs)), ())
        )
    for batch, rows, inner, columns in BATCHED:
        operands = tensors((batch, rows, inner), (batch, inner, columns))
        found.append((f"batched product {batch}x{rows}x{inner}x{columns}", aten.bmm.default, operands, ()))
    for images, kernel, stride, padding in CONVOLUTIONS:
        rest = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
        x, w = tensors(images, kernel)
        name = f"{'x'.join(map(str, images))} by {'x'.join(map(str, kernel))} / {stride}"
        found.append((f"convolution {name}", aten.convolution.default, [x, w], (None, *rest)))
        grad = torch.randn_like(aten.convolution(x, w, None, *rest))
        for part, mask in (("input", [True, False, False]), ("weight", [False, True, False])):
            arguments = (None, *rest, mask)
            found.append((f"its gradient by the {part}", aten.convolution_backward.default, [grad, x, w], arguments))
    (x,) = tensors((16, 64, 32, 32))
    pool = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    found.append(("max pool 16x64x32x32", aten.max_pool2d_with_indices.default, [x], pool))
    return found


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape) for shape in shapes]


def shortest(run: Callable[[], Any], runs: int = 30) -> float:
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


def compare(only: str, options: dict[str, Any]) -> None:
    print("| operator | PyTorch, ms | ours, ms |\n|---|--:|--:|")
    for name, op, operands, rest in cases():
        if only not in name:
            continue
        rule = rule_of(op)
        assert rule is not None
        lower, arrays = rule.lower, [jnp.asarray(operand.numpy()) for operand in operands]
        compiled = jax.jit(lambda *a, f=lower, r=rest: f(*a, *r), compiler_options=options).lower(*arrays).compile()
        ours = shortest(lambda f=compiled, a=arrays: jax.block_until_ready(f(*a)))
        theirs = shortest(lambda f=op, a=operands, r=rest: f(*a, *r))
        print(f"| {name} | {theirs:.2f} | {ours:.2f} |", flush=True)


def count_faults(workloads: list[str], steps: int = 10) -> None:
    print("| model | contestant | all threads, ms | of that in the kernel, ms | page faults |\n|---|---|--:|--:|--:|")
    for workload in workloads:
        for name in ("eager", "replay"):
            contestant = CONTESTANTS[name](WORKLOADS[workload], WORKLOADS[workload].dropout)
            for _ in range(6):
                contestant.step()
            contestant.wait()
            before = resource.getrusage(resource.RUSAGE_SELF)
            for _ in range(steps):
                contestant.step()
            contestant.wait()
            after = resource.getrusage(resource.RUSAGE_SELF)
            kernel = (after.ru_stime - before.ru_stime) / steps * 1e3
            whole = (after.ru_utime - before.ru_utime) / steps * 1e3 + kernel
            faults = (after.ru_minflt - before.ru_minflt) / steps
            print(f"| {workload} | {name} | {whole:.1f} | {kernel:.1f} | {faults:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="operators whose names contain this")
    parser.add_argument("--options", type=json.loads, default={}, help="XLA's compiler options, in JSON")
    parser.add_argument("--steps", default="", help="models whose steps' page faults are counted instead")
    args = parser.parse_args()
    confine()
    torch_xla.devices()
    if args.steps:
        count_faults(args.steps.split(","))
        return
    with jax.enable_x64(True):
        compare(args.only, args.options)


if __name__ == "__main__":
    main()
