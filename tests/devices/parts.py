"""The parts of the proof: named steps, each of which is compiled for a topology."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import torch_xla.distributed.spmd as xs
from torch_xla.debug import StepPlan
from torch_xla.experimental.custom_kernel import flash_attention, gmm


@dataclass(frozen=True)
class Case:
    """A step, and a function that raises `AssertionError` if its plan is not as it must be."""

    name: str
    step: Callable[[], Any]
    check: Callable[[StepPlan], None] = lambda plan: None
    steps: int = 1
    devices: int = 1


def operators(dtype: torch.dtype = torch.float32) -> Iterator[Case]:
    """Each operator of PyTorch's database, with its first sample."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        sample = next(iter(info.sample_inputs("cpu", dtype, requires_grad=False)), None)
        if sample is None:
            continue
        name = f"{info.name}.{info.variant_test_name}".rstrip(".")
        try:
            moved = sample.transform(lambda x: x.to("xla") if isinstance(x, torch.Tensor) else x)
        except NotImplementedError as error:  # such as a sparse tensor
            yield Case(name, partial(_refused, error))
            continue

        def step(op: Any = info.op, given: Any = moved) -> Any:
            return op(given.input, *given.args, **given.kwargs)

        yield Case(name, step)


def _refused(error: Exception) -> None:
    raise error


class Transformer(nn.Module):
    """A small GPT: attention and a network of two layers, in each block."""

    def __init__(self, size: int = 128, blocks: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(512, size)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(size, 4, 4 * size, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(blocks)
        )
        self.head = nn.Linear(size, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.words(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class Images(nn.Module):
    """A small network of convolutions with normalisation and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.second = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.head((x + self.second(x)).mean((2, 3)))


def training(model: nn.Module, inputs: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Return a step of AdamW on a model."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(inputs()).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# A computation inside of a kernel.
_FUSED = re.compile(r"^%(?:fused|wrapped)_.*?^\}", re.MULTILINE | re.DOTALL)


def _trains(plan: StepPlan) -> None:
    program = plan.programs[-1]
    assert program.donated, "nothing is donated"
    assert plan.fits is not False, "it does not fit"
    # The numbers of a step, such as a learning rate, are one short row of float64. A GPU divides float32 exactly by way
    # of float64, inside of a fusion: no such array is in its memory.
    text = program.text if plan.topology.startswith("v") else _FUSED.sub("", program.text)
    assert not re.search(r"f64\[(\d+,|\d{3})", text), "there is an array of float64, which the model has not"
    assert not re.search(r"\b(infeed|outfeed|send|recv)\(|xla_python_cpu_callback|S\(5\)", program.text), (
        "something is sent to or from the host"
    )
    assert program.work.all_flops > 0, "it multiplies nothing"


def models() -> Iterator[Case]:
    """Small models as training steps, in float32 and bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        short = str(dtype).removeprefix("torch.")
        with torch.device("xla"):
            text, images = Transformer().to(dtype), Images().to(dtype)
        words = torch.zeros(4, 128, dtype=torch.int64, device="xla")
        pixels = torch.zeros(4, 3, 32, 32, dtype=dtype, device="xla")
        yield Case(f"transformer {short}", training(text, lambda x=words: x), _trains, steps=2)
        yield Case(f"convolutions {short}", training(images, lambda x=pixels: x), _trains, steps=2)


def kernels() -> Iterator[Case]:
    """Wrappers of Pallas kernels, forward and backward, in bfloat16."""
    shape = (1, 2, 512, 128)

    def attention() -> None:
        q, k, v = (torch.zeros(shape, dtype=torch.bfloat16, device="xla", requires_grad=True) for _ in range(3))
        flash_attention(q, k, v, causal=True).float().sum().backward()

    def grouped() -> torch.Tensor:
        left = torch.zeros(512, 128, dtype=torch.bfloat16, device="xla")
        right = torch.zeros(4, 128, 256, dtype=torch.bfloat16, device="xla")
        return gmm(left, right, torch.full((4,), 128, dtype=torch.int32, device="xla"))

    yield Case("flash_attention", attention)
    yield Case("gmm", grouped)


def collectives() -> Iterator[Case]:
    """Layouts over four devices, with the collectives that they need."""
    size = 256

    def step(weight: tuple[Any, ...], rows: tuple[Any, ...]) -> torch.Tensor:
        mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
        layer = nn.Linear(size, size).to("xla")
        x = torch.randn(64, size).to("xla")
        xs.mark_sharding(layer.weight, mesh, weight)
        xs.mark_sharding(x, mesh, rows)
        layer(x).square().mean().backward()
        return layer.weight.grad

    def has(*kinds: str) -> Callable[[StepPlan], None]:
        def check(plan: StepPlan) -> None:
            found = {each.kind for program in plan.programs for each in program.work.collectives}
            assert found & set(kinds), f"none of {', '.join(kinds)} among {', '.join(found) or 'no collectives'}"

        return check

    yield Case("data parallel", lambda: step((None, None), ("data", None)), has("all-reduce"), devices=4)
    yield Case("tensor parallel", lambda: step((None, "model"), (None, "model")), has("all-reduce"), devices=4)
    gathers = has("all-gather", "collective-permute")
    yield Case("fully sharded", lambda: step((("data", "model"), None), (("data", "model"), None)), gathers, devices=4)


PARTS: dict[str, Callable[[], Iterator[Case]]] = {
    "models": models,
    "kernels": kernels,
    "collectives": collectives,
    "operators": operators,
}
