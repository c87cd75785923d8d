"""`FlopCounterMode` counts on `xla` what it counts on the CPU."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode


def counted(program: Callable[[str], torch.Tensor], device: str) -> tuple[int, int]:
    """The products of a forward and of a backward pass."""
    with FlopCounterMode(display=False) as forward:
        result = program(device)
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def check_same_count(program: Callable[[str], torch.Tensor]) -> int:
    expected = counted(program, "cpu")
    assert counted(program, "xla") == expected
    return sum(expected)


def given(device: str, *sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.ones(size, device=device, requires_grad=True) for size in sizes]


@pytest.mark.parametrize("size", [(4,), (2, 4), (2, 3, 4), (2, 3, 5, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_of_every_size_of_input(size: tuple[int, ...], bias: bool) -> None:
    assert check_same_count(lambda d: nn.Linear(4, 2, bias=bias).to(d)(*given(d, size))) > 0


@pytest.mark.parametrize("frozen", ["weight", "input", "neither", "vector"])
def test_products_for_gradients_that_nobody_needs_are_not_counted(frozen: str) -> None:
    def program(d: str) -> torch.Tensor:
        x, weight, bias = given(d, (2, 3, 4), (4,) if frozen == "vector" else (2, 4), (2,))
        weight.requires_grad_(frozen != "weight")
        x.requires_grad_(frozen != "input")
        return linear(x, weight, None if frozen == "vector" else bias)

    check_same_count(program)


def test_modules_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).to("xla")
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(5, 4, device="xla")).sum().backward()
    totals = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
    # The input needs no gradient.
    assert totals["Sequential.0"] == 2 * 5 * 4 * 3 * 2 and totals["Sequential.2"] == 2 * 5 * 3 * 2 * 3
    assert totals["Global"] == totals["Sequential"] == totals["Sequential.0"] + totals["Sequential.2"]


@pytest.mark.parametrize("needed", [(1, 1, 1, 1), (1, 1, 1, 0), (0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 0, 0), (0, 0, 1, 0)])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("size", [4, 5])
def test_attention(needed: tuple[int, ...], dropout: float, size: int) -> None:
    def program(d: str) -> torch.Tensor:
        operands = given(d, (1, 2, 8, 4), (1, 2, 9, 4), (1, 2, 9, size), (8, 9))
        for operand, is_needed in zip(operands, needed, strict=True):
            operand.requires_grad_(bool(is_needed))
        return scaled_dot_product_attention(*operands, dropout_p=dropout)

    check_same_count(program)


def test_attention_without_a_mask_and_of_groups() -> None:
    sizes = (1, 4, 8, 4), (1, 2, 9, 4), (1, 2, 9, 4)
    for options in ({}, {"dropout_p": 0.5}):
        check_same_count(lambda d, o=options: scaled_dot_product_attention(*given(d, *sizes), enable_gqa=True, **o))  # type: ignore[misc]


@pytest.mark.parametrize("network", [nn.GRU, nn.RNN, nn.LSTM])
def test_networks_count_as_the_products_that_they_are_composed_of(network: Any) -> None:
    # In 32 bits the CPU has a kernel of the whole LSTM, for which PyTorch counts nothing.
    assert check_same_count(lambda d: network(3, 4).double().to(d)(torch.ones(5, 2, 3, device=d).double())[0]) > 0


LATE = """
import sys
import torch
loaded = "torch.utils.flop_counter" in sys.modules
import torch_xla
assert ("torch.utils.flop_counter" in sys.modules) == loaded, "torch_xla imports it"
from torch.utils.flop_counter import FlopCounterMode, flop_registry
assert torch.ops.aten.linear_backward in flop_registry
assert torch.utils.flop_counter.__spec__.name == "torch.utils.flop_counter"
"""

EARLY = """
import torch
from torch.utils.flop_counter import flop_registry
import torch_xla
assert torch.ops.aten.linear_backward in flop_registry
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [LATE, EARLY])
def test_the_counter_may_be_imported_before_and_after_and_is_not_imported_for_it(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
