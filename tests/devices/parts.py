"""The parts of the proof: named steps, each of which is compiled for a topology."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

import torch_xla.distributed.spmd as xs
from benchmarks.models import Bert, Gpt2, Llama, ResNet
from tests.devices.case import Case, has, training
from tests.devices.layers import layers
from tests.devices.networks import Images, Mixture, StateSpace, UNet
from tests.devices.operators import operators
from tests.devices.replicas import replicas
from torch_xla.debug import StepPlan
from torch_xla.experimental.custom_kernel import (
    flash_attention,
    gmm,
    gmm_backward,
    multi_queries_paged_attention,
    paged_attention,
    quantized_matmul_int8,
    ragged_paged_attention,
    tgmm,
)
from torch_xla.experimental.splash_attention import SplashAttentionConfig, splash_attention
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

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


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "GPT-2": lambda: Gpt2(0.1, 2, 128, 2, 512, 64),
    "Llama": lambda: Llama(2, 128, 4, 2, 256, 512, 64),
    "BERT": lambda: Bert(0.1, 2, 128, 512, 64),
    "Mixtral": Mixture,
    "Mamba": StateSpace,
    "convolutions": Images,
    "UNet": UNet,
    "ResNet": ResNet,
}
_OF_IMAGES = ("convolutions", "UNet", "ResNet")


def models() -> Iterator[Case]:
    """Small models as training steps, in float32 and bfloat16, recorded and compiled."""
    for dtype, way in product((torch.float32, torch.bfloat16), ("recorded", "openxla")):
        for name, make in NETWORKS.items():
            with torch.device("xla"):
                model = make().to(dtype)
            given = (
                torch.zeros(2, 3, 32, 32, dtype=dtype) if name in _OF_IMAGES else torch.zeros(2, 64, dtype=torch.int64)
            )
            inputs = given.to("xla")
            if (name, dtype, way) == ("Mixtral", torch.float32, "openxla"):
                continue  # `torch.compile` of PyTorch 2.13 takes grouped products of bfloat16 alone, on each backend
            called: Any = torch.compile(model, backend="openxla") if way == "openxla" else model
            yield Case(f"{name} {dtype} {way}", training(called, lambda x=inputs: x), _trains, steps=2)


def _zeros(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype, device="xla")


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="xla")


def kernels() -> Iterator[Case]:
    """Wrappers of Pallas kernels in bfloat16: attention and grouped products with gradients, pages, int8."""

    def with_gradients(attend: Callable[..., torch.Tensor]) -> Callable[[], None]:
        def step() -> None:
            q, k, v = (_zeros(1, 2, 512, 128).requires_grad_() for _ in range(3))
            attend(q, k, v).float().sum().backward()

        return step

    def grouped() -> torch.Tensor:
        return gmm(_zeros(512, 128), _zeros(4, 128, 256), _ints(128, 128, 128, 128))

    def grouped_gradients() -> tuple[torch.Tensor, torch.Tensor]:
        return gmm_backward(_zeros(512, 256), _zeros(512, 128), _zeros(4, 128, 256), _ints(128, 128, 128, 128))

    pages, places = (2, 8, 16, 128), (2, 4)  # of 2 key heads 8 pages of 16 keys; 4 pages for each of 2 sequences

    def paged() -> torch.Tensor:
        indices = _zeros(*places, dtype=torch.int32)
        return paged_attention(_zeros(2, 4, 128), _zeros(*pages), _zeros(*pages), _ints(40, 64), indices, 2)

    def several_queries() -> torch.Tensor:
        indices, lengths = _zeros(*places, dtype=torch.int32), _ints(40, 64)
        queries = _zeros(2, 16, 4, 128)
        return multi_queries_paged_attention(
            queries, _zeros(*pages), _zeros(*pages), lengths, indices, _ints(16, 16), 2, 8
        )

    def ragged() -> torch.Tensor:
        indices = _zeros(*places, dtype=torch.int32)
        return ragged_paged_attention(
            _zeros(32, 4, 128), _zeros(8, 16, 4, 128), _ints(40, 64), indices, _ints(0, 12, 32), _ints(2)
        )

    def narrow_weights() -> torch.Tensor:
        weight = _zeros(512, 256, dtype=torch.int8)
        return quantized_matmul_int8(_zeros(64, 256), weight, _zeros(512), quantize_activation=True)

    def columns_by_rows() -> torch.Tensor:
        return tgmm(_zeros(128, 512), _zeros(512, 256), _ints(128, 128, 128, 128))

    def splash(**settings: Any) -> Callable[..., torch.Tensor]:
        return partial(splash_attention, config=SplashAttentionConfig(**settings).to_json())

    yield Case("flash_attention", with_gradients(partial(flash_attention, causal=True)))
    yield Case("scaled_dot_product_attention", with_gradients(partial(scaled_dot_product_attention, is_causal=True)))
    yield Case("flex_attention", with_gradients(torch.compile(flex_attention, backend="openxla")))
    yield Case("splash_attention", with_gradients(splash()))
    window = splash(attentiontype_local_sliding=True, slide_window_size=128)
    yield Case("splash_attention of a window", with_gradients(window))
    yield Case("gmm", grouped)
    yield Case("tgmm", columns_by_rows)
    yield Case("gmm_backward", grouped_gradients)
    yield Case("paged_attention", paged)
    yield Case("multi_queries_paged_attention", several_queries)
    yield Case("ragged_paged_attention", ragged)
    yield Case("quantized_matmul_int8", narrow_weights)


def collectives() -> Iterator[Case]:
    """Layouts over 4 and 16 devices, with the collectives that they need."""
    size = 256
    gathers = has("all-gather", "collective-permute")

    def mesh(devices: int) -> xs.Mesh:
        return xs.Mesh(np.arange(devices), (2, devices // 2), ("data", "model"))

    def layer(devices: int, weight: tuple[Any, ...], rows: tuple[Any, ...]) -> torch.Tensor:
        made, x = nn.Linear(size, size).to("xla"), torch.randn(64, size).to("xla")
        xs.mark_sharding(made.weight, mesh(devices), weight)
        xs.mark_sharding(x, mesh(devices), rows)
        made(x).square().mean().backward()
        return made.weight.grad

    def pipeline(devices: int) -> torch.Tensor:
        stages, along = devices, xs.Mesh(np.arange(devices), (devices,), ("stage",))
        weights = torch.randn(stages, size, size).to("xla").requires_grad_()
        batches, passed = torch.randn(8, 64, size).to("xla"), torch.zeros(stages, 64, size).to("xla")
        for each in (weights, passed):
            xs.mark_sharding(each, along, ("stage", None, None))
        results = []
        for turn in range(len(batches) + stages - 1):  # each stage hands what it has to the next one
            passed = torch.cat([batches[min(turn, 7)][None], passed[:-1]])
            xs.mark_sharding(passed, along, ("stage", None, None))
            passed = torch.bmm(passed, weights).relu()
            results.append(passed[-1])
        torch.stack(results[stages - 1 :]).square().mean().backward()
        return weights.grad

    def hands_on(plan: StepPlan) -> None:
        has("collective-permute")(plan)
        sent = [each for program in plan.programs for each in program.work.collectives if each.kind == "all-gather"]
        assert not any(f"{size},{size}]" in each.largest for each in sent), "weights leave their stage"

    def wrapped(devices: int) -> list[torch.Tensor]:
        along = xs.Mesh(np.arange(devices), (devices, 1), ("fsdp", "model"))
        network = nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Linear(size, size)).to("xla")
        divided = SpmdFullyShardedDataParallel(network, along)
        optimizer = torch.optim.AdamW(divided.parameters())
        x = torch.randn(64, size).to("xla")
        xs.mark_sharding(x, along, ("fsdp", None))
        divided(x).square().mean().backward()
        optimizer.step()
        return [*divided.parameters()]

    for devices in (4, 16):
        over = partial(layer, devices)
        rows, both = ("data", None), (("data", "model"), None)
        yield Case(f"data parallel x {devices}", partial(over, (None, None), rows), has("all-reduce"), devices=devices)
        features = (None, "model")
        yield Case(
            f"tensor parallel x {devices}", partial(over, features, features), has("all-reduce"), devices=devices
        )
        yield Case(f"fully sharded x {devices}", partial(over, both, both), gathers, devices=devices)
        yield Case(f"FSDPv2 x {devices}", partial(wrapped, devices), gathers, devices=devices)
        yield Case(f"pipeline x {devices}", partial(pipeline, devices), hands_on, devices=devices)


PARTS: dict[str, Callable[[], Iterator[Case]]] = {
    "models": models,
    "kernels": kernels,
    "layers": layers,
    "collectives": collectives,
    "replicas": replicas,
    "operators": operators,
}
