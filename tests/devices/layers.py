"""Loops on the device, values in the host's memory, and layers of 8 and 4 bits."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.devices.case import Case
from torch_xla.debug import StepPlan
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers
from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host
from torch_xla.experimental.xla_quantized_matmul import XlaQuantizedLinear

SIZE, ROWS = 512, 64


def _contains(*words: str) -> Callable[[StepPlan], None]:
    def check(plan: StepPlan) -> None:
        text = plan.programs[-1].text
        missing = [word for word in words if word not in text]
        assert not missing, f"its program has no {', '.join(missing)}"

    return check


def _is_in_host_memory(plan: StepPlan) -> None:
    if plan.topology.startswith("v"):  # the compiler for GPUs leaves values on the device, JAX's too, if none is here
        _contains("S(5)")(plan)


def layers() -> Iterator[Case]:
    """Loops with and without gradients, activations in the host's memory, quantised and float8 layers."""
    yield from _loops()
    x = torch.zeros(ROWS, SIZE, dtype=torch.bfloat16, device="xla")
    yield Case("offload", partial(_offloaded, x), _is_in_host_memory)
    settings: dict[str, dict[str, Any]] = {
        "int8": {},
        "int8, rows too": {"quantize_activation": True},
        "int8, zero points": {"is_symmetric": False},
        "int4": {"int4_weight": True},
        "int4 in blocks": {"int4_weight": True, "block_size": 128},
    }
    for name, given in settings.items():
        layer = XlaQuantizedLinear(SIZE, SIZE, **{"is_symmetric": True, **given}).to("xla")
        yield Case(name, partial(_with_gradient, layer, x), partial(_stays_narrow, layer.weight))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        yield Case(f"{dtype} product", partial(_float8, x, dtype))
        yield Case(f"{dtype} weight", partial(_float8_weight, x, dtype))


def _loops() -> Iterator[Case]:
    x = torch.zeros(ROWS, SIZE, device="xla")
    with torch.device("xla"):
        blocks = nn.ModuleList([nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU()) for _ in range(6)])
        weight = nn.Parameter(torch.randn(SIZE, SIZE) / SIZE)

    def scanned() -> None:
        def step(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            carry = torch.tanh(carry @ weight + row)
            return carry, carry

        scan(step, x[0], x)[1].square().mean().backward()

    def until_small() -> Any:
        return while_loop(lambda count, y: y.abs().max() > 1e-3, lambda count, y: (count + 1, y @ weight), (0, x))

    def counted() -> None:
        fori_loop(0, 8, lambda i, y: torch.tanh(y @ weight + i), x).square().mean().backward()

    def in_layers() -> None:
        scan_layers(blocks, x).square().mean().backward()

    for name, loop in (
        ("scan", scanned),
        ("while_loop", until_small),
        ("fori_loop", counted),
        ("scan_layers", in_layers),
    ):
        yield Case(name, loop, _contains("while("))


def _offloaded(x: torch.Tensor) -> list[torch.Tensor]:
    with torch.device("xla"):
        network = nn.Sequential(*[nn.Linear(SIZE, SIZE, dtype=x.dtype) for _ in range(3)])
    with torch.autograd.graph.saved_tensors_hooks(place_to_host, place_to_device):
        loss = network(x).square().mean()
    loss.backward()
    return [each.grad for each in network.parameters()]


def _with_gradient(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    given = x.detach().requires_grad_()
    layer(given).float().sum().backward()
    return given.grad


def _stays_narrow(weight: torch.Tensor, plan: StepPlan) -> None:
    if not plan.topology.startswith("v"):
        return  # the compiler for GPUs widens what it has no kernel for, and chooses kernels on the card alone
    (program,) = plan.programs
    most = 2 * SIZE * SIZE  # the weight in bfloat16, which a product reads
    assert program.sizes.intermediate <= most, f"{program.sizes.intermediate} bytes are set aside"
    held = sum(each.bytes for each in program.largest if each.what == "held" and each.name.endswith("weight"))
    assert held <= 1.1 * weight.nbytes, f"the weight takes {held} bytes"


def _float8(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    one, other = (torch.zeros(SIZE, SIZE, device="xla").to(kind) for kind in (dtype, torch.float8_e4m3fn))
    scale = torch.ones((), device="xla")
    return torch._scaled_mm(one, other.t(), scale_a=scale, scale_b=scale, out_dtype=x.dtype)


def _float8_weight(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    weight = torch.zeros(SIZE, SIZE, device="xla").to(dtype)
    given = x.detach().requires_grad_()
    nn.functional.linear(given, weight.to(x.dtype)).float().sum().backward()
    return given.grad
